"""One weight of mine held against what golden says it is: counts and sums, block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dumpcmp.weights.casting import matching
from dumpcmp.weights.matrices import BLOCK, RowBlock
from dumpcmp.weights.row_layouts import RowNumbers, WeightFit

_MOST_ROWS = 1 << 20  # numbers of wrong rows that are kept


@dataclass(slots=True)
class WeightMeasure:
    """How far a weight of mine is from golden's. Measures add up block by block."""

    count: int = 0
    num_wrong: int = 0
    num_wrong_rows: int = 0
    num_zero: int = 0  # zero where golden is not
    num_nonfinite: int = 0  # where golden is finite
    dot: float = 0.0  # the sum of golden times mine, and of the squares of each
    golden_square: float = 0.0
    mine_square: float = 0.0
    difference_square: float = 0.0
    wrong_rows: list[RowNumbers] = field(default_factory=list)
    zero_rows: list[RowNumbers] = field(default_factory=list)  # zero in mine, and not in golden

    @property
    def matches(self) -> bool:
        """Whether every element is what it should be, and none overflowed in a cast."""
        return self.num_wrong == 0 and self.num_nonfinite == 0

    @property
    def rel_l2(self) -> float:
        """The norm of the difference over that of golden."""
        if self.golden_square == 0:
            return 0.0 if self.difference_square == 0 else math.inf
        return math.sqrt(self.difference_square / self.golden_square)

    @property
    def cosine(self) -> float:
        """Of the angle between both."""
        product = math.sqrt(self.golden_square * self.mine_square)
        return self.dot / product if product else math.nan

    def add_equal(self, golden: RowBlock, mine: RowBlock) -> None:
        """Take in a block that has the bits of the cast, which may have overflowed."""
        self.count += mine.values.numel()
        if _largest(mine.values.dtype) < _largest(golden.values.dtype):
            lost = ~mine.values.float().isfinite() & golden.values.float().isfinite()
            self.num_nonfinite += int(lost.sum())

    def add(self, golden: RowBlock, mine: RowBlock, right: Tensor, rows: RowNumbers) -> None:
        """Take in a block; `right` says which elements are what they should be."""
        self.count += right.numel()
        wrong = ~right
        self.num_wrong += int(wrong.sum())
        a, b = golden.values.double(), mine.values.double()
        self.num_nonfinite += int((~b.isfinite() & a.isfinite()).sum())
        self.num_zero += int(((b == 0) & (a != 0)).sum())
        finite = a.isfinite() & b.isfinite()
        a, b = a.where(finite, 0.0), b.where(finite, 0.0)
        self.dot += float((a * b).sum())
        self.golden_square += float((a * a).sum())
        self.mine_square += float((b * b).sum())
        self.difference_square += float(((a - b) ** 2).sum())
        bad = wrong.any(1)
        self.num_wrong_rows += int(bad.sum())
        if self.num_wrong_rows <= _MOST_ROWS:
            self.wrong_rows.append(rows[bad.numpy()])
            self.zero_rows.append(rows[((b == 0).all(1) & (a != 0).any(1)).numpy()])


def _largest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max if dtype.is_floating_point else math.inf


def blocks(fit: WeightFit) -> Iterator[tuple[RowNumbers, RowBlock, RowBlock]]:
    """Golden and mine, block by block."""
    for start, end in pairwise(_cuts(fit)):
        rows = np.arange(start, end)
        golden = fit.golden.gather(fit.layout.rows[rows])
        yield rows, golden, fit.mine.block(slice(start, end))


def _cuts(fit: WeightFit) -> list[int]:
    """Where blocks begin: at most so many elements each, and each a run of golden's rows."""
    step = max(1, BLOCK // max(1, fit.mine.columns))
    even = {*range(0, fit.mine.rows, step), fit.mine.rows}
    heights = [part.rows for part in fit.golden.parts]
    part_of = np.searchsorted(np.cumsum(heights), fit.layout.rows, "right")
    is_break = (np.diff(fit.layout.rows) != 1) | (np.diff(part_of) != 0)
    breaks = np.flatnonzero(is_break) + 1
    if breaks.size > len(even) + len(heights) * 2:  # rows that take turns are gathered
        return sorted(even)
    return sorted(even.union(map(int, breaks)))


def measure(fit: WeightFit) -> WeightMeasure:
    """Hold every element of mine against golden's."""
    found = WeightMeasure()
    for rows, golden, mine in blocks(fit):
        has_codes = golden.slack is not None or mine.slack is not None
        if not has_codes and _same_bytes(fit.cast.of(golden.values), mine.values):
            found.add_equal(golden, mine)
        else:
            found.add(golden, mine, matching(golden, mine, fit.cast), rows)
    return found


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    sides = [each.reshape(-1).view(torch.uint8).numpy() for each in (one, other)]
    return bool((_words(sides[0]) == _words(sides[1])).all())


def _words(octets: NDArray[np.uint8]) -> NDArray[np.unsignedinteger]:
    return octets.view(np.uint64) if octets.size % 8 == 0 else octets


def near(right: Tensor, mine: RowBlock) -> Tensor:
    """Which elements of mine are `right` but for two roundings, and half a step of codes."""
    dtype = mine.values.dtype
    roundoff = torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.5
    least = torch.finfo(dtype).smallest_normal if dtype.is_floating_point else 0.5
    slack = 2.5 * roundoff * right.abs() + least
    if mine.slack is not None:
        slack = slack + mine.slack.double() * 1.1
    return (mine.values.double() - right).abs() <= slack
