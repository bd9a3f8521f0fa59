"""Partitioned runs against whole ones: what the clean ones come to, and which faults are named."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.partitioned.campaign import place
from benchmarks.partitioned.corpus import ALL, SUBJECTS, Planted, Subject
from benchmarks.tables import Table
from dumpcmp.comparing import compare
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Verdict
from tests.taps.distributed.launching import forked

CAMPAIGN = "benchmarks.partitioned.campaign"
HEADINGS = (
    "run", "ranks", "clean", "exit", "FAIL", "UNPAIRED", "INCONCLUSIVE", "golden's values compared",
    "faults", "exact", "near", "wrong", "missed",
)  # fmt: skip
_TRACED = ("fx", "compiled")
_COMPARED = frozenset(map(Verdict, ("PASS", "FAIL", "DTYPE", "NONFINITE", "FLIP", "EMPTY")))


@dataclass(frozen=True)
class Found:
    """What a comparison said of a planted fault."""

    name: str
    grade: str
    said: str


def compared_share(outcome: Outcome) -> float:
    """How many of golden's values were held against anything."""
    held: dict[object, bool] = {}
    for row in outcome.rows:
        if row.golden_key is not None and row.verdict is not Verdict.SKIPPED:
            held[row.golden_key] = held.get(row.golden_key, False) or row.verdict in _COMPARED
    return sum(held.values()) / max(1, len(held))


def graded(outcome: Outcome, fault: Planted) -> str:
    """Whether a fault was named at its op and rank: exact, near (in its layer), wrong, missed."""
    first = outcome.first_divergence
    if outcome.exit_code == 0 or first is None:
        is_told = outcome.exit_code and fault.said and re.search(fault.said, outcome.word)
        return "near" if is_told else "missed" if outcome.exit_code == 0 else "unknown"
    told = f"{outcome.word} {first.reason}"
    if re.fullmatch(fault.at, first.key.op):
        ranked = fault.rank is None or re.search(rf"\branks? (\d+, )*{fault.rank}\b", told)
        return "exact" if ranked and re.search(fault.said, told) else "near"
    return "near" if re.fullmatch(fault.near, first.key.op) else "wrong"


def run_all(room: Path, names: Sequence[str]) -> None:
    """Run the goldens and all subjects with their faults: one set of processes for each size."""
    run_goldens(room, names)
    run_ranks(room, names)


def run_goldens(room: Path, names: Sequence[str]) -> None:
    """Run the whole models that the subjects are held against."""
    _launched(1, room, "goldens", *dict.fromkeys(ALL[name].golden for name in names))


def run_ranks(room: Path, names: Sequence[str]) -> None:
    """Run the subjects, clean and with their faults."""
    for ranks in sorted({ALL[name].ranks for name in names}):
        chosen = [name for name in names if ALL[name].ranks == ranks]
        runs = [run for name in chosen for run in _runs(name, ALL[name])]
        traced = [run for run in runs if ALL[run.partition(":")[0]].program.mode in _TRACED]
        for run in traced:  # dynamo takes a second model for another shape of the first
            _launched(ranks, room, run)
        _launched(ranks, room, *(run for run in runs if run not in traced))


def _runs(name: str, subject: Subject) -> Iterator[str]:
    yield name
    yield from (f"{name}:{fault.fault}" for fault in subject.faults)


def _launched(ranks: int, room: Path, *words: str) -> None:
    if not words:
        return
    forked(ranks, CAMPAIGN, str(room), *words)


def measured(room: Path, name: str) -> tuple[list[str], list[Found]]:
    """The row of one subject, and what was said of each of its faults."""
    subject = ALL[name]
    golden = room / f"golden-{subject.golden}"
    clean = compare(golden, room / place(name))
    found = []
    for fault in subject.faults:
        outcome = compare(golden, room / place(f"{name}:{fault.fault}"))
        found.append(Found(f"{name}:{fault.fault}", graded(outcome, fault), outcome.word))
    grades = [one.grade for one in found]
    counts = [str(clean.tally[Verdict(v)]) for v in ("FAIL", "UNPAIRED", "INCONCLUSIVE")]
    row = [
        name, str(subject.ranks), clean.conclusion, str(clean.exit_code), *counts,
        f"{compared_share(clean):.1%}", str(len(found)),
        *(str(grades.count(word)) for word in ("exact", "near", "wrong")),
        str(grades.count("missed") + grades.count("unknown")),
    ]  # fmt: skip
    return row, found


def table(names: Sequence[str] = ()) -> Table:
    """Every subject, clean and with its faults."""
    names = names or list(SUBJECTS)
    with tempfile.TemporaryDirectory() as place_:
        room = Path(place_)
        run_all(room, names)
        rows = []
        for name in names:
            row, found = measured(room, name)
            rows.append(row)
            for one in found:
                print(one.grade, one.name, one.said[:200], sep=" | ", file=sys.stderr)
    return Table("Partitioned runs", HEADINGS, rows, "Real processes on gloo, one rank each.")
