"""The truth table of planted faults again, on compacted archives beside full ones."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cases import BENIGN, FAULTS, Case
from benchmarks.faults import Finding, benign_alarms, dumped, finding
from benchmarks.subjects import SUBJECTS, Subject
from benchmarks.tables import Table
from dumpcmp.compacting import compact
from dumpcmp.comparing import compare

DTYPES = ("float32", "bfloat16")


@dataclass
class Counts:
    """What became of the faults of one subject in one dtype."""

    full: Counter[str] = field(default_factory=Counter)
    compacted: Counter[str] = field(default_factory=Counter)
    same: int = 0
    others: list[str] = field(default_factory=list)  # faults whose first divergence moved
    alarms_full: int = 0
    alarms_compacted: int = 0


def both(golden: Path, target: Path, room: Path, case: Case) -> tuple[Finding, Finding]:
    """What is found on full archives, and on copies of them that are compacted."""
    full = finding(compare(golden, target), case)
    return full, finding(compare(compacted(golden, room), compacted(target, room)), case)


def compacted(path: Path, room: Path) -> Path:
    copy = room / f"{path.name}-compacted"
    if not copy.exists():
        shutil.copytree(path, copy)
        compact(copy)
    return copy


def count(subject: Subject, dtype: str, room: Path) -> Counts:
    golden, counts = dumped(subject, room / "golden", dtype=dtype), Counts()
    for number, case in enumerate(FAULTS[subject.name]):
        if dtype not in case.dtypes:
            continue
        target = dumped(subject, room / f"fault{number}", case.plant, dtype)
        full, small = both(golden, target, room, case)
        counts.full[full.found] += 1
        counts.compacted[small.found] += 1
        counts.same += full.told == small.told
        if full.told != small.told:
            counts.others.append(f"{case.name}: {full.told} -> {small.told}")
    for number, plant in enumerate(BENIGN.values()):
        target = dumped(subject, room / f"benign{number}", plant, dtype)
        counts.alarms_full += len(benign_alarms(compare(golden, target)))
        outcome = compare(compacted(golden, room), compacted(target, room))
        counts.alarms_compacted += len(benign_alarms(outcome))
    return counts


def told(found: Counter[str]) -> str:
    return " / ".join(str(found[word]) for word in ("exact", "module", "late", "early", "missed"))


def table() -> Table:
    rows, moved = [], []
    for subject in SUBJECTS.values():
        for dtype in DTYPES:
            with tempfile.TemporaryDirectory() as room:
                counts = count(subject, dtype, Path(room))
            num = sum(counts.full.values())
            rows.append([
                subject.name, dtype, str(num), told(counts.full), told(counts.compacted),
                f"{counts.same} of {num}", f"{counts.alarms_full} / {counts.alarms_compacted}",
            ])  # fmt: skip
            moved += [f"{subject.name} {dtype}, {other}" for other in counts.others]
    how = "Found: exact / module / late / early / missed. Default sketches of 512."
    if moved:
        how += " Elsewhere than on full tensors: " + "; ".join(moved) + "."
    return Table(
        "Faults found on compacted archives",
        ["model", "dtype", "faults", "full", "compacted", "same first divergence",
         "false alarms full / compacted"],
        rows,
        how,
    )  # fmt: skip
