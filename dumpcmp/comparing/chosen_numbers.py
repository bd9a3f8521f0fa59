"""Numbers of a result that another choice explains: both runs read them off what ops chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dumpcmp.comparing.both_sides import side_of
from dumpcmp.comparing.laying import Job, Task
from dumpcmp.comparing.tree_differences import LeafDifference
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.row import Pair, Row, Verdict
from dumpcmp.nouns.value import Kind, dtype_named

_MOST = 1 << 16  # elements of a choice that are looked at


@dataclass(frozen=True)
class ChosenNumbers:
    """Choices that differ, in these rows or in earlier ones, and the indices that they gave."""

    rows: Sequence[Row] = ()
    work: Mapping[Pair, Job] | None = None
    before: bool = False  # earlier steps have chosen otherwise

    @cached_property
    def is_any(self) -> bool:
        """Whether any choice was another, so that what follows may be another computation."""
        return self.before or any(row.verdict is Verdict.FLIP for row in self.rows)

    def explains(self, difference: LeafDifference) -> bool:
        """Whether both numbers are what the sides chose, at one place."""
        ours, theirs = difference.golden, difference.target
        if ours is None or theirs is None:
            return False
        wanted = ours.value, theirs.value
        return all(type(one) is int for one in wanted) and wanted in self._numbers

    @cached_property
    def _numbers(self) -> set[tuple[int, int]]:
        return {both for task in self._tasks() for both in _differing(task)}

    def _tasks(self) -> Iterator[Task]:
        names = {(row.golden_key, row.target_key) for row in self.rows
                 if row.verdict is Verdict.FLIP}  # fmt: skip
        for pair, task in (self.work or {}).items():
            if (pair.golden, pair.target) in names and isinstance(task, Task):
                yield task


def _differing(task: Task) -> set[tuple[int, int]]:
    """The pairs of integers in which both sides of a value differ."""
    if dtype_named(task.golden.first.dtype).kind is not Kind.INT:
        return set()
    try:
        ours, theirs = (side_of(task, side).numbers().reshape(-1)[:_MOST] for side in (False, True))
    except DumpcmpError:  # which the row of the value tells
        return set()
    if ours.shape != theirs.shape:
        return set()
    places = np.flatnonzero(ours != theirs)
    return set(zip(ours[places].tolist(), theirs[places].tolist(), strict=True))
