"""Numbers that a program reads off tensors and calls with: they are judged where they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dumpcmp.comparing.both_sides import side_of
from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.laying import Job, Task
from dumpcmp.judge.tolerances import SAME_RATIO
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.row import Measured, Pair
from dumpcmp.nouns.value import Kind, dtype_named


def reading(
    flow: DataFlow,
    work: Mapping[Pair, Job],
    measured: Mapping[Pair, Measured],
    failing: Collection[tuple[Key | None, Key | None]],
) -> Callable[[float, float], bool]:
    """Whether a number of golden and one of the target were read off one value of both runs.

    That value is none that fails, by golden's and the target's name.
    """
    sound = {p: job for p, job in work.items() if (p.golden, p.target) not in failing}
    readable = _ReadOff(flow, sound, measured)
    return lambda golden, target: readable.is_anywhere(_BothNumbers(golden, target))


class _BothNumbers(NamedTuple):
    """One number of golden, and the target's in its place."""

    golden: float
    target: float


@dataclass(frozen=True)
class _ReadOff:
    """The values that numbers may have been read off."""

    flow: DataFlow
    work: Mapping[Pair, Job]
    measured: Mapping[Pair, Measured]

    def is_anywhere(self, numbers: _BothNumbers) -> bool:
        """Whether `numbers` were read off any value."""
        every = (each for some in self._singles.values() for _, each in some)
        return any(_are_made_of(numbers, each) for each in every)

    @cached_property
    def _singles(self) -> dict[str, list[tuple[tuple[int, int], _BothNumbers]]]:
        """The values of one number that differ, by golden's model, with step and place in it."""
        found: dict[str, list[tuple[tuple[int, int], _BothNumbers]]] = {}
        for pair in self.flow.pairs:
            numbers = self._numbers(pair)
            if pair.golden is not None and numbers is not None:
                place = pair.golden.step, self.flow.golden.record(pair.golden).order
                found.setdefault(pair.golden.model, []).append((place, numbers))
        return found

    def _numbers(self, pair: Pair) -> _BothNumbers | None:
        task, found = self.work.get(pair), self.measured.get(pair)
        if pair.unwritten or pair.key.slot.is_gradient or not isinstance(task, Task):
            return None
        if found is None or found.metrics is None or found.metrics.equal or not _is_single(task):
            return None
        try:
            ours, theirs = (side_of(task, side).numbers().item() for side in (False, True))
        except DumpcmpError:  # which the row of the value tells
            return None
        return _BothNumbers(float(ours), float(theirs))


def _is_single(task: Task) -> bool:
    """Whether both sides are one real number, and kept as such."""
    sides = task.golden, task.target
    if any(side.is_summarised or side.problem for side in sides):
        return False
    return all(
        math.prod(side.first.shape) == 1 and dtype_named(side.first.dtype).kind is Kind.FLOAT
        for side in sides
    )


def _are_made_of(numbers: _BothNumbers, read: _BothNumbers) -> bool:
    """Whether `numbers` are what was `read`, times some number, or some number divided by it."""
    if not all(each and math.isfinite(each) for each in (*numbers, *read)):
        return False
    ratio, own = numbers.target / numbers.golden, read.target / read.golden
    return any(math.isclose(ratio, each, rel_tol=SAME_RATIO) for each in (own, 1 / own))
