"""Metrics that a user asks for by name: one of ours that costs time, or a function of their own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from dumpcmp.align.listing import Listing
from dumpcmp.comparing.laying import Job, Task
from dumpcmp.comparing.side import asked_now
from dumpcmp.measure.divergence import kl_divergence
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.row import Measured, Own, Pair
from dumpcmp.nouns.value import Kind, Value, dtype_named

if TYPE_CHECKING:
    from dumpcmp.measure.metric_process import MetricProcess

_KL = "kl_divergence"
_OURS = {_KL: kl_divergence}
WIDE_AS_LOGITS = 16  # elements of a row of the model's result, of which the divergence is told


def loadable(names: Iterable[str]) -> tuple[str, ...]:
    """`names` of metrics, which can all be loaded."""
    wanted = tuple(names)
    for name in wanted:
        _check(name)
    return wanted


def asking(
    work: Mapping[Pair, Job], wanted: tuple[str, ...], golden: Listing | None = None
) -> dict[Pair, Job]:
    """`work`, each task with the metrics that are asked for.

    What may be logits, which nobody need ask for, is held by their divergence as well.
    """
    results = (
        {golden.first(key) for key in golden.values if key.op == ROOT and key.slot.is_output}
        if golden
        else set()
    )
    found = dict(work)
    for pair, task in work.items():
        if isinstance(task, Task):
            is_wanted = pair.golden in results and _KL not in wanted and _may_be_logits(task)
            own = (*wanted, _KL) if is_wanted else wanted
            found[pair] = replace(task, own=own) if own else task
    return found


def _may_be_logits(task: Task) -> bool:
    """Whether a result is wide enough for logits, and its elements are there."""
    first = task.golden.first
    is_held = not (task.golden.is_summarised or task.target.is_summarised)
    is_wide = bool(first.shape) and first.shape[-1] >= WIDE_AS_LOGITS
    return is_held and is_wide and dtype_named(first.dtype).kind is Kind.FLOAT


def _check(name: str) -> None:
    if name in _OURS:
        return
    if ":" not in name:
        known = ", ".join(_OURS)
        raise SelectionError(
            f"--metric {name!r} is not known", hint=f"pkg.mod:function, or {known}"
        )
    if name.startswith("__main__:"):
        raise SelectionError(
            f"--metric {name}: it is computed in a process of its own, which has no part of this "
            "program",
            hint="put the function into a module, and name that",
        )
    _process_for(asked_now(), os.getpid()).check(name)


@lru_cache(maxsize=1)
def _process_for(_asked: str, _asker: int) -> MetricProcess:
    """The process that computes the user's metrics for one comparison, and for one worker of it."""
    from dumpcmp.measure.metric_process import MetricProcess

    return MetricProcess()


def measured_by(names: Iterable[str], golden: Value, target: Value) -> tuple[Own, str]:
    """What each of the metrics gives of a pair, by column, and why the first that failed did."""
    found: dict[str, float] = {}
    problem = ""
    for name in names:
        if name in _OURS:
            found[name] = _OURS[name](golden, target)
            continue
        process = _process_for(asked_now(), os.getpid())
        numbers, why = process.computed(name, golden.numbers(), target.numbers())
        found |= numbers
        problem = problem or why
    return tuple(found.items()), problem


def failures_of_own(measured: Mapping[Pair, Measured]) -> list[tuple[Key, str]]:
    """The values of which a metric gave no number, and why."""
    found = ((pair.key, one.own_problem) for pair, one in measured.items())
    return [(key, problem) for key, problem in found if problem]
