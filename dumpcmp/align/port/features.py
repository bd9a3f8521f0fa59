"""Finds the rows of one matrix in another: where a piece of a merged projection lies in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dumpcmp.align.port.samples import Doubles, distance
from dumpcmp.judge.tolerances import SAME_VALUE

_MOST = 256  # elements of a row that stand for it


@dataclass(frozen=True, slots=True)
class Located:
    """The rows of a piece in a whole: runs of them, one in each of so many groups."""

    start: int
    run: int
    groups: int
    rel_l2: float


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """The rows of a matrix, each by its product with one and the same vector."""

    matrix: Doubles
    marks: Doubles
    order: NDArray[np.intp]  # by their marks

    @classmethod
    def of(cls, matrix: Doubles) -> FeatureRows:
        """Mark the rows of `matrix`; of long ones some elements stand for all."""
        matrix = matrix[:, :: max(1, matrix.shape[1] // _MOST)]
        marks = matrix @ np.random.default_rng(matrix.shape[1]).standard_normal(matrix.shape[1])
        return cls(matrix, marks, np.argsort(marks))

    def head(self) -> FeatureRows:
        """The first row alone."""
        return FeatureRows(self.matrix[:1].copy(), self.marks[:1], np.zeros(1, np.intp))

    def has(self, other: FeatureRows) -> bool:
        """Whether the first row of `other` is a row of this."""
        if other.matrix.shape[1] != self.matrix.shape[1] or not other.matrix[0].any():
            return False
        return next(self.find(other.matrix[0], other.marks[0]), None) is not None

    def find(self, row: Doubles, mark: float) -> Iterator[int]:
        """The rows that are `row`, as near as can be told."""
        reach = SAME_VALUE * float(np.linalg.norm(row)) * 4  # the mark of noise: 4 deviations
        ordered = self.marks[self.order]
        low, high = np.searchsorted(ordered, (mark - reach, mark + reach))
        near = sorted(self.order[low:high], key=lambda n: abs(self.marks[n] - mark))
        yield from (int(n) for n in near if distance(row, self.matrix[n]) <= SAME_VALUE)


def locate(piece: FeatureRows, whole: FeatureRows) -> Located | None:
    """Where the rows of `piece` lie in `whole`: in one run, or in one in each of equal groups."""
    if len(piece.matrix) >= len(whole.matrix):
        return None
    for start in whole.find(piece.matrix[0], piece.marks[0]):
        found = _located(piece, whole, start)
        if found is not None:
            return found
    return None


def _located(piece: FeatureRows, whole: FeatureRows, start: int) -> Located | None:
    """The hypothesis that the first row lies at `start`."""
    num, total = len(piece.matrix), len(whole.matrix)
    run = _run(piece.matrix, whole.matrix[start : start + num])
    if run == num:
        return Located(start, num, 1, distance(piece.matrix, whole.matrix[start : start + num]))
    for second in whole.find(piece.matrix[run], piece.marks[run]):
        period = second - start
        if period > run and num % run == 0 and start < period and total == period * (num // run):
            groups = num // run
            turns = whole.matrix.reshape(groups, period, -1)[:, start : start + run]
            apart = distance(piece.matrix, turns.reshape(num, -1))
            if apart <= SAME_VALUE:
                return Located(start, run, groups, apart)
    return None


def _run(piece: Doubles, whole: Doubles) -> int:
    """How many rows from the first are the same."""
    piece = piece[: len(whole)]
    apart = np.linalg.norm(piece - whole, axis=1) > SAME_VALUE * np.linalg.norm(piece, axis=1)
    return int(np.argmax(apart)) if apart.any() else len(piece)
