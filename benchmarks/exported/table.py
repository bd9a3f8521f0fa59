"""Sound exports that must be the same, what dumping them costs, and faults planted into them."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import torch
from torch import Tensor

import dumpcmp
from benchmarks.exported.custom_ops import compiler, import_domain, library
from benchmarks.exported.faults import WORDS, PlantedFault, changes, dump_with_wrong_kernel
from benchmarks.exported.placing import EXACT, placed
from benchmarks.exported.running import (
    ExportedSubject,
    compared,
    cost_of,
    dumped,
    export,
)
from benchmarks.exported.subjects import SUBJECTS, Subject
from benchmarks.tables import Table
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.value import to_torch

_SEED = 9
_TRIES = 6
# By how much of its size a fault must move an output: far above what the programs may differ in.
_LEAST = {"float32": 2.0**-14, "float16": 2.0**-5, "int8": 2.0**-4}
_HELD = (Verdict.PASS, Verdict.DTYPE, Verdict.COVERED, Verdict.DEAD, Verdict.FLIP)


def table() -> Table:
    """The exports that this was made with."""
    return table_of("onnx", [each for each in SUBJECTS if not each.is_held_out])


def table_of(name: str, subjects: Iterable[Subject]) -> Table:
    """What became of each of `subjects`, sound and with faults."""
    draws = random.Random(_SEED)
    rows = []
    for subject in subjects:
        with tempfile.TemporaryDirectory() as folder:
            room = Path(folder)
            exported = export(subject, room)
            mine = dumped(exported.golden, exported.model, room / "mine")
            outcome = compared(exported.golden, mine, subject.form)
            (facts,) = dumpcmp.Archive(mine).run.values()
            cost = cost_of(exported, room / "timed")
            found = Counter(_faults(exported, room, draws))
            rows.append([
                str(subject), subject.kind, outcome.headline.partition(":")[0],
                "yes" if facts["run"]["certificate"]["holds"] else "no",
                f"{share_of(outcome):.1%}", f"{cost.plain_seconds * 1000:.0f} ms",
                f"{cost.ratio:.1f}",
                str(sum(found.values())), str(found[EXACT]),
                str(found["near"]), str(found["elsewhere"] + found["unknown"]),
                str(found["missed"]),
            ])  # fmt: skip
    headings = ["export", "kind", "sound", "certified", "golden's values matched or covered",
                "plain ORT", "dump / plain ORT", "faults", "at the node", "near", "elsewhere",
                "missed"]  # fmt: skip
    how = (
        "Both times are of loading the model and one run, without importing anything: plainly, and "
        "dumped to a new archive. "
        "A fault counts if it moves an output by more than 2^-14 of its size in float32, 2^-5 in "
        "float16 and 2^-4 in int8."
    )
    return Table(name, headings, rows, how)


def share_of(outcome: Outcome) -> float:
    """Of golden's values, those that were found in the target, or inside of what it fuses."""
    rows = [row for row in outcome.rows if row.golden_key is not None and not row.key.op.is_effect]
    rows = [row for row in rows if row.verdict is not Verdict.SKIPPED]
    return sum(row.verdict in _HELD for row in rows) / max(1, len(rows))


def _faults(exported: ExportedSubject, room: Path, draws: random.Random) -> Iterator[str]:
    for word in WORDS:
        if word == "library" and (compiler() is None or exported.subject.form != "float32"):
            continue
        found = _planted(exported, word, room, draws)
        if found is not None:
            fault, model = found
            mine = room / "faulty"
            outcome = compared(exported.golden, mine, exported.subject.form)
            yield placed(outcome, dumpcmp.Archive(mine), model, fault)


def _planted(
    exported: ExportedSubject, word: str, room: Path, draws: random.Random
) -> tuple[PlantedFault, object] | None:
    """Dump with a fault of a kind that reaches an output; None where no draw does."""
    mine = room / "faulty"
    for _ in range(_TRIES):
        model = onnx.load(exported.model)
        if word == "kernel":
            fault = dump_with_wrong_kernel(exported.golden, exported.model, mine, draws)
        else:
            options = list(changes(model, word))
            if not options:
                return None
            fault = draws.choice(options)()
            libraries: tuple[str, ...] = ()
            if word == "library":
                import_domain(model)
                libraries = (str(library(room)),)
            onnx.save(model, room / "faulty.onnx")
            try:
                dumped(exported.golden, room / "faulty.onnx", mine, libraries)
            except dumpcmp.CaptureError:
                continue  # ONNX Runtime itself refuses such a graph
        if _reaches(exported, mine):
            return fault, model
    return None


def _reaches(exported: ExportedSubject, mine: Path) -> bool:
    unit = _LEAST[exported.subject.form]
    return any(
        x.shape != y.shape
        or not bool(torch.isfinite(y).all())
        or float((x - y).norm()) > unit * float(x.norm())
        for x, y in zip(_results(exported.golden), _results(mine), strict=True)
    )


def _results(path: Path) -> list[Tensor]:
    archive = dumpcmp.Archive(path)
    return [
        to_torch(archive.load(record)).double()
        for held in archive.rank_steps(archive.models[0], 0)
        for record in held.records()
        if record.key.op == "<root>" and record.key.slot.is_output
    ]
