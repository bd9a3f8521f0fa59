"""Asks the product: dumps a golden run and a target, compares, and grades what was named."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import dumpcmp
from benchmarks.truth.models import Model
from benchmarks.truth.planting import Fault
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.outcome import Outcome

Around = Callable[[nn.Module], AbstractContextManager[None]]
GRADES = ("exact", "near", "wrong", "remark", "missed")


@dataclass(frozen=True, slots=True)
class Graded:
    """What a comparison said of one fault, and how good that is."""

    grade: str  # of GRADES
    told: str
    elsewhere: tuple[str, ...]  # roots that are not at the fault
    early: int  # failing rows of functions that ran before it
    seconds: float


def dumped(
    model: Model,
    dtype: str,
    path: Path,
    around: Around,
    *,
    backward: bool,
    mode: str = "eager",
    device: str = "cpu",
) -> Path:
    """Run a step of `model` inside `around` into an archive at `path`."""
    made, inputs = model.made(dtype, device), model.given(dtype, device)
    torch.manual_seed(11)
    if mode != "eager":
        torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with (
            around(made),
            dumpcmp.capture(made, path, mode=mode, backward=backward, overwrite=True),
        ):
            model.step(made, inputs, backward)
    return path


def cleared(path: Path) -> None:
    """Remove the archive at `path`, and its compacted copy."""
    for each in (path, path.with_name(f"{path.name}-compacted")):
        shutil.rmtree(each, ignore_errors=True)


def compacted(path: Path) -> Path:
    """A copy of the archive with Summaries in place of its tensors."""
    copy = path.with_name(f"{path.name}-compacted")
    if not copy.exists():
        shutil.copytree(path, copy)
        dumpcmp.compact(copy)
    return copy


def asked(golden: Path, target: Path) -> tuple[Outcome, float]:
    """The outcome of a comparison, and the seconds of this process that it took."""
    began = time.process_time()
    outcome = dumpcmp.compare(golden, target)
    return outcome, time.process_time() - began


def graded(outcome: Outcome, seconds: float, fault: Fault) -> Graded:
    """Hold the first divergence against the place of the fault."""
    roots = [row.key for row in outcome.roots]
    others = tuple(f"{named(key)} {key.slot}" for key in roots if not _is_at(key, fault))
    early = _num_early(outcome, fault)
    first = outcome.first_divergence
    if first is None:
        missed = "remark" if _is_remarked(outcome, fault) else "missed"
        grade = "wrong" if outcome.exit_code else missed
        return Graded(grade, outcome.headline, others, early, seconds)
    return Graded(_grade(first.key, fault), said(outcome), others, early, seconds)


def _is_remarked(outcome: Outcome, fault: Fault) -> bool:
    """Whether a call that differs, for which no number does, is told of."""
    return any(f" {op}: " in remark for remark in outcome.remarks for op in fault.ops)


def said(outcome: Outcome) -> str:
    """The first divergence in words, or the headline."""
    first = outcome.first_divergence
    if first is None:
        return outcome.headline
    reason = first.reason if len(first.reason) < 200 else f"{first.reason[:197]}..."
    return f"{named(first.key)} {first.key.slot} {first.verdict}: {reason}"


def named(key: Key) -> str:
    return f"{key.op}#{key.call}"


def _is_at(key: Key, fault: Fault) -> bool:
    if fault.in_gradient and key.slot.startswith("grad."):
        return key.op.module in fault.modules
    if str(key) in fault.aliases:
        return True
    if fault.certain == "leaf" and key.slot.startswith("param."):
        return key.op.module in fault.modules
    return named(key) in fault.ops and (key.slot.is_gradient or not fault.in_gradient)


def _grade(key: Key, fault: Fault) -> str:
    if _is_at(key, fault):
        return "exact"
    if fault.certain == "leaf" and key.op.is_module and key.op in fault.modules:
        return "exact"
    return "near" if key.op.module in fault.modules else "wrong"


def _num_early(outcome: Outcome, fault: Fault) -> int:
    """Failing rows of functions before the first row of the fault's op."""
    rows = [row for row in outcome.rows if not row.key.slot.is_gradient]
    starts = [i for i, row in enumerate(rows) if named(row.key) in fault.ops]
    before = rows[: min(starts, default=len(rows))]
    return sum(row.verdict.fails for row in before if not row.key.op.is_module)


def aliases(golden: Path, fault: Fault) -> frozenset[str]:
    """The gradients of tensors that the fault's call shares with other calls.

    Such a gradient is the sum of what all of its takers give back; the archive has only the sum.
    """
    archive = dumpcmp.Archive(golden)
    first = {key: archive.shards(key)[0].same_as or key for key in archive}
    hit = {
        home
        for key, home in first.items()
        if named(key) in fault.ops and key.slot.startswith("grad_input")
    }
    takers: dict[Key, set[str]] = {home: set() for home in hit}
    for key, home in first.items():
        if home in hit and key.slot.startswith("grad_input") and not key.op.is_module:
            takers[home].add(named(key))
    shared = {home for home, ops in takers.items() if len(ops) > 1}
    return frozenset(str(key) for key, home in first.items() if home in shared)


def alarms(outcome: Outcome) -> tuple[int, int]:
    """The rows that fail forward, and in gradients: of a benign pair there should be none."""
    failing = [row.key.slot.is_gradient for row in outcome.failures]
    return len(failing) - sum(failing), sum(failing)
