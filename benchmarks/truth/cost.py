"""What running ops again costs a comparison: with replay, beside without."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

import dumpcmp
from benchmarks import faults
from benchmarks.cases import BENIGN, FAULTS
from benchmarks.subjects import SUBJECTS
from benchmarks.tables import Table
from benchmarks.truth.corpus import Goldens, untouched
from benchmarks.truth.kinds import planned
from benchmarks.truth.models import MODELS
from benchmarks.truth.noise import other_way
from benchmarks.truth.planting import fault_at
from benchmarks.truth.table import STRUCK
from benchmarks.truth.watching import below, plainly

ROUNDS = 3


def seconds(golden: Path, target: Path, replay: str) -> float:
    """The median of the process's seconds in a comparison."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        dumpcmp.compare(golden, target, replay=replay)
        times.append(time.process_time() - began)
    return statistics.median(times)


def row(name: str, what: str, golden: Path, target: Path) -> list[str]:
    dumpcmp.compare(golden, target)  # what is imported and cached is not counted
    without, with_it = (seconds(golden, target, replay) for replay in ("off", "auto"))
    ratio = f"{with_it / without:.2f} x"
    found = [name, what, f"{without:.2f} s", f"{with_it:.2f} s", ratio]
    print("| " + " | ".join(found) + " |", file=sys.stderr, flush=True)
    return found


def of_models(room: Path) -> Iterator[list[str]]:
    for name in STRUCK:
        for backward in (False, True):
            goldens = Goldens(MODELS[name], "bfloat16", room / f"{name}-{backward}")
            goldens.room.mkdir()
            golden = goldens(backward)
            words = f"{name}, bf16, {'training' if backward else 'inference'}"
            yield row(words, "bit-equal", golden, goldens.target(untouched, backward))
            plan = next(planned(goldens.seen(), "bfloat16", name))
            plant = partial(fault_at(plan, backward).plant, answer=plainly)
            yield row(words, "one fault", golden, goldens.target(plant, backward))
            noisy = partial(below, answer=other_way)
            yield row(words, "other BLAS", golden, goldens.target(noisy, backward))


def of_subjects(room: Path) -> Iterator[list[str]]:
    """The archives of the older table of faults."""
    for name, subject in SUBJECTS.items():
        golden = faults.dumped(subject, room / name)
        for case in FAULTS[name][:3]:
            target = faults.dumped(subject, room / f"{name}-{case.name}", case.plant)
            yield row(name, case.name, golden, target)
        for words, plant in BENIGN.items():
            target = faults.dumped(subject, room / f"{name}-{words}", plant)
            yield row(name, words, golden, target)


def table() -> Table:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as room:
        rows = [*of_subjects(Path(room)), *of_models(Path(room))]
    how = (
        f"Seconds of the process, median of {ROUNDS}, one thread. Goals: at most 3 x on the "
        "archives of the older faults, at most 1.05 x where everything is bit-equal."
    )
    return Table("truth-cost", ["run", "target", "without", "with replay", "ratio"], rows, how)
