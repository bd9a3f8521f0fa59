"""The truth table: which planted faults are found at their op, and which benign variants alarm."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import BENIGN, FAULTS, Case, Plant, nothing, wide_matmuls
from benchmarks.subjects import SUBJECTS, Subject
from benchmarks.tables import Table
from dumpcmp.comparing import compare
from dumpcmp.dumping.capturing import capture
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Metrics, Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """What a comparison said of one planted fault."""

    found: str  # "exact", "module", "late", "early" or "missed"
    is_root: bool
    early_alarms: int  # failing rows before the planted op
    told: str  # the first divergence, in words


def dumped(
    subject: Subject,
    path: Path,
    plant: Plant = nothing,
    dtype: str = "float32",
    mode: str = "eager",
    **kept: Any,
) -> Path:
    """Run `subject` with `plant` into an archive at `path`; `kept` are options of `capture`."""
    model = subject.model(getattr(torch, dtype))
    torch.manual_seed(11)
    torch.compiler.reset()  # what was traced before would make some of this graph dynamic
    short = wide_matmuls() if dtype == "bfloat16" else nullcontext()
    with short, plant(model), capture(model, path, mode=mode, **kept):
        subject.run(model)
    return path


def finding(outcome: Outcome, case: Case) -> Finding:
    """Hold the first divergence against the op where the fault was planted."""
    first = outcome.first_divergence
    planted = [
        i
        for i, row in enumerate(outcome.rows)
        if (row.key.op, row.key.step) == (case.op, case.token)
    ]
    start = min(planted, default=len(outcome.rows))
    early = sum(
        row.verdict.fails
        for row in outcome.rows[:start]
        if "/" in row.key.op  # a module's output stands where the module begins
    )
    roots = {(row.key.op, row.key.step) for row in outcome.roots}
    is_root = (case.op, case.token) in roots
    if first is None:
        return Finding("missed", is_root, early, "nothing")
    told = f"{first.key.op}#{first.key.call} token {first.key.step} {first.key.slot}"
    place = (first.key.op, first.key.step)
    if place == (case.op, case.token):
        return Finding("exact", is_root, early, told)
    if place[1] == case.token and _module(place[0]) == _module(case.op):
        return Finding("module", is_root, early, told)
    return Finding("early" if early else "late", is_root, early, told)


def _module(op: str) -> str:
    return op.partition("/")[0]


def benign_alarms(outcome: Outcome) -> list[str]:
    """The rows of a benign comparison that fail: there should be none."""
    return [
        f"{row.key} {row.verdict} {row.judgement.reason}"
        for row in outcome.rows
        if row.verdict.fails
    ]


def msprobe(outcome: Outcome, case: Case) -> str:
    """What msProbe's published rule says of the rows of the planted op.

    A row is an error where the cosine is below 0.9, or below 0.99 with a difference above 0.001,
    or the difference is above 1; ops that one side lacks are not in its table.
    """
    rows = [r for r in outcome.rows if (r.key.op, r.key.step) == (case.op, case.token)]
    measured = [row.metrics for row in rows if row.metrics is not None]
    if not measured:
        return "not in its table"
    return "error" if any(_is_error(metrics) for metrics in measured) else "pass"


def _is_error(metrics: Metrics) -> bool:
    if not metrics.nonfinite_agree:
        return True
    far = metrics.cosine < 0.99 and metrics.max_abs_diff > 0.001
    return far or metrics.cosine < 0.9 or metrics.max_abs_diff > 1


def fault_rows(room: Path, **kept: Any) -> Iterator[list[str]]:
    """A line for each planted fault."""
    for subject in SUBJECTS.values():
        for dtype in ("float32", "bfloat16"):
            golden = dumped(subject, room / f"{subject.name}-{dtype}", dtype=dtype, **kept)
            for case in FAULTS[subject.name]:
                if dtype in case.dtypes:
                    mine = dumped(subject, room / "mine", case.plant, dtype, **kept)
                    outcome = compare(golden, mine)
                    found = finding(outcome, case)
                    told = found.found if found.found == "exact" else f"{found.found}: {found.told}"
                    alarms, rule = str(found.early_alarms), msprobe(outcome, case)
                    root = "yes" if found.is_root else "no"
                    yield [subject.name, dtype, case.name, case.op, told, root, alarms, rule]
                    shutil.rmtree(mine)


def benign_rows(room: Path, **kept: Any) -> Iterator[list[str]]:
    """A line for each benign variant: FAIL rows of all that were compared."""
    for subject in SUBJECTS.values():
        for dtype in ("float32", "bfloat16"):
            golden = room / f"{subject.name}-{dtype}"
            for name, plant in BENIGN.items():
                mine = dumped(subject, room / "mine", plant, dtype, **kept)
                yield _benign(subject, dtype, name, golden, mine)
        golden = room / f"{subject.name}-float32"
        for mode in ("fx", "compiled"):
            mine = dumped(subject, room / "mine", mode=mode, **kept)
            yield _benign(subject, "float32", f"{mode} against eager", golden, mine)
        mine = dumped(subject, room / "mine", dtype="bfloat16", **kept)
        yield _benign(subject, "float32", "bfloat16 against float32", golden, mine)


def _benign(subject: Subject, dtype: str, name: str, golden: Path, mine: Path) -> list[str]:
    outcome = compare(golden, mine)
    failing = sum(row.verdict in (Verdict.FAIL, Verdict.NONFINITE) for row in outcome.rows)
    msprobe_errors = sum(
        row.golden_dtype != row.target_dtype or _is_error(row.metrics)
        for row in outcome.rows
        if row.metrics is not None
    )
    shutil.rmtree(mine)
    compared = outcome.tally.compared
    said = f"{msprobe_errors} of {compared} error"
    return [subject.name, dtype, name, "benign", f"{failing} of {compared} FAIL", "", "", said]


def table() -> Table:
    """Run every fault and every benign variant."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as room:
        faults = list(fault_rows(Path(room)))
        benign = list(benign_rows(Path(room)))
    exact = sum(row[4] == "exact" for row in faults)
    return Table(
        "faults",
        ("model", "dtype", "case", "op", "found", "root", "alarms before it", "msProbe's rule"),
        [*faults, *benign],
        f"{exact} of {len(faults)} faults are the first divergence, at the exact op. The model "
        "transformer has 6 layers of width 256, the decoder is the one of `dumpcmp demo`; short "
        "matmuls are summed in float32 and rounded once, as accelerators do.",
    )
