"""Table "proof": what `compare` says of pairs of runs, sound and with faults, over all corpora."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import dumpcmp
from benchmarks import ports, unseen
from benchmarks.partitioned import table as partitioned
from benchmarks.partitioned.campaign import place
from benchmarks.partitioned.corpus import ALL, SUBJECTS, Planted
from benchmarks.tables import Table
from benchmarks.truth import asking
from benchmarks.truth.corpus import ANSWERS, Goldens, Part, faults_of
from benchmarks.truth.models import DTYPES, MODELS
from benchmarks.truth.planting import Fault
from benchmarks.truth.table import STRUCK
from benchmarks.truth.watching import below

HEADINGS = ("corpus", "cases", "exact", "near", "wrong place", "missed", "unknown",
            "sound", "false alarms", "sound unknown", "seconds")  # fmt: skip
JOBS = "PROOF_JOBS"
PART = "PROOF_PART"  # one of how many faults of the truth corpus is planted

# Where the bugs of ports are: the first module of the port, and golden's.
GUILTY = {
    "other_rotary": ("blocks.0.mix", "model.layers.0.self_attn"),
    "other_split": ("blocks.0.mix", "model.layers.0.self_attn"),
    "other_order": ("blocks.0.norm1", "model.layers.0.input_layernorm"),
    "megatron_rotary": ("layers.0", "model.layers.0.self_attn"),
    "megatron_split": ("layers.0", "model.layers.0.self_attn"),
    "gpt2_order": ("blocks.0.norm_a", "transformer.h.0.ln_1"),
}


Grade = tuple[str, str]  # the grade, and the sentence that it is taken from


@dataclass(frozen=True, slots=True)
class Graded:
    """What was said of one pair."""

    corpus: str
    case: str
    grade: str  # exact, near, wrong place, missed, unknown; of a sound pair: same, alarm, unknown
    is_sound: bool
    told: str
    seconds: float


def asked(corpus: str, case: str, paths: Sequence[Path], fault: Fault | None) -> Graded:
    """What is said of one pair."""
    return _timed(corpus, case, fault is None, partial(_grade, paths, fault))


def _timed(corpus: str, case: str, is_sound: bool, grade_of: Callable[[], Grade]) -> Graded:
    began = time.process_time()
    try:
        grade, told = grade_of()
    except Exception as raised:
        last = traceback.extract_tb(raised.__traceback__)[-1]
        at = f"{Path(last.filename).name}:{last.lineno}"
        grade, told = "unknown", f"crash: {type(raised).__name__}: {raised} at {at}"
    return Graded(corpus, case, grade, is_sound, told[:300], time.process_time() - began)


def _grade(paths: Sequence[Path], fault: Fault | None) -> Grade:
    outcome = dumpcmp.compare(*paths)
    if fault is not None:
        graded = asking.graded(outcome, 0.0, fault)
        if fault.certain == "port" and graded.grade == "near":
            return "exact", graded.told
        grade = {"wrong": "wrong place", "remark": "exact"}.get(graded.grade, graded.grade)
        return ("unknown" if outcome.exit_code == 2 and grade != "exact" else grade), graded.told
    return {0: "same", 1: "alarm", 2: "unknown"}[outcome.exit_code], outcome.headline


# The corpora, in shares that a process can take


def of_ports(cases: str) -> Iterator[Graded]:
    for name, build, plant in getattr(ports, cases):
        with tempfile.TemporaryDirectory() as place:
            room, golden = Path(place), ports.theirs(name)
            port = build()
            port.take(golden)
            plant(port)
            paths = ports.dumped(golden, room / "d1"), ports.dumped(port, room / "d2")
            fault = None
            if plant is not ports.nothing:
                modules = frozenset(GUILTY[plant.__name__])
                fault = Fault(plant.__name__, frozenset(), modules, plant, certain="port")
            yield asked(f"ports {cases.lower()}", f"{build.__name__} {plant.__name__}",
                            paths, fault)  # fmt: skip


def of_truth(model: str, dtype: str, way: str, one_of: int) -> Iterator[Graded]:
    part = Part(one_of=one_of)
    with tempfile.TemporaryDirectory() as room:
        goldens = Goldens(MODELS[model], dtype, Path(room))
        sound = goldens.target(partial(below, answer=ANSWERS[way]), True)
        yield asked("truth", f"{model} {dtype} {way}", (goldens(True), sound), None)
        if model not in STRUCK:
            return
        for fault in faults_of(goldens.model, dtype, way, goldens.seen()):
            words = f"{model} {dtype} {way}: {fault.name} at {sorted(fault.ops)[:2]}"
            if not part.has(words):
                continue
            golden = goldens(fault.backward)
            target = goldens.target(partial(fault.plant, answer=ANSWERS[way]), fault.backward)
            if fault.in_gradient:
                fault.aliases = asking.aliases(golden, fault)
            if fault.detectable:
                yield asked("truth", words, (golden, target), fault)


def of_unseen(name: str) -> Iterator[Graded]:
    for way, *runs in unseen.WAYS:
        with tempfile.TemporaryDirectory() as room:
            paths = [unseen.dumped(name, Path(room, how), dtype, how) for how, dtype in runs]
            yield asked("unseen", f"{name} {way}", paths, None)


def of_partitioned(name: str) -> Iterator[Graded]:
    subject = ALL[name]
    with tempfile.TemporaryDirectory() as parent:
        room = Path(parent)
        partitioned.run_all(room, [name])
        golden = room / f"golden-{subject.golden}"
        clean = (golden, room / place(name))
        yield asked("partitioned", name, clean, None)
        for fault in subject.faults:
            run = f"{name}:{fault.fault}"
            paths = (golden, room / place(run))
            yield _timed("partitioned", run, False, partial(_grade_of_ranks, paths, fault))


def _grade_of_ranks(paths: tuple[Path, Path], fault: Planted) -> Grade:
    outcome = dumpcmp.compare(*paths)
    grade = partitioned.graded(outcome, fault)
    return "wrong place" if grade == "wrong" else grade, outcome.word


def shares(one_of: int) -> Iterator[Callable[[], Iterator[Graded]]]:
    for name in SUBJECTS:
        yield partial(of_partitioned, name)
    yield partial(of_ports, "CASES")
    yield partial(of_ports, "HELD_OUT")
    for model in MODELS:
        for dtype in DTYPES:
            for way in ANSWERS:
                yield partial(of_truth, model, dtype, way, one_of)
    for name in unseen.MODELS:
        yield partial(of_unseen, name)


def carried_out(share: Callable[[], Iterator[Graded]]) -> list[Graded]:
    torch.set_num_threads(1)
    found: list[Graded] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for one in share():
                print(f"{one.grade:12} {one.seconds:6.1f} s {one.corpus}: "
                      f"{one.case}: {one.told}", file=sys.stderr, flush=True)  # fmt: skip
                found.append(one)
        except Exception:
            print(f"broken: {share}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    return found


def table() -> Table:
    jobs, one_of = int(os.environ.get(JOBS, "1")), int(os.environ.get(PART, "12"))
    work = list(shares(one_of))
    if jobs == 1:
        found = [one for share in work for one in carried_out(share)]
    else:
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=fresh) as workers:
            found = [one for ones in workers.map(carried_out, work) for one in ones]
    how = f"{len(found)} pairs. torch {torch.__version__}."
    return Table("proof", HEADINGS, list(_rows(found)), how)


def _rows(found: Sequence[Graded]) -> Iterator[list[str]]:
    for corpus in dict.fromkeys(one.corpus for one in found):
        some = [one for one in found if one.corpus == corpus]
        faults = Counter(one.grade for one in some if not one.is_sound)
        sound = Counter(one.grade for one in some if one.is_sound)
        seconds = sum(one.seconds for one in some)
        yield [
            corpus, str(faults.total()),
            *(str(faults[g]) for g in ("exact", "near", "wrong place", "missed", "unknown")),
            str(sound.total()), str(sound["alarm"]), str(sound["unknown"]), f"{seconds:.0f}",
        ]  # fmt: skip
