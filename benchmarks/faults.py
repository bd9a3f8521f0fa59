"""The truth table: which planted faults are found at their op, and which benign variants alarm."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.cases import BENIGN, FAULTS, Case, Plant, nothing, wide_matmuls
from benchmarks.subjects import SUBJECTS, Subject
from benchmarks.tables import Table
from dumpcmp.comparing import compare
from dumpcmp.dumping import capture
from dumpcmp.outcome import Outcome, Verdict


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
) -> Path:
    """Run `subject` with `plant` into an archive at `path`."""
    model = subject.model(getattr(torch, dtype))
    torch.manual_seed(11)
    with wide_matmuls(), plant(model), capture(model, path, mode=mode):
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
