"""One weight of mine held against what golden says it is: counts and sums, block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

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

    def add(self, golden: RowBlock, mine: RowBlock, right: Tensor, rows: RowNumbers) -> None:
        """Take in a block; `right` says which elements are what they should be."""
        self.count += right.numel()
        if golden.slack is None and mine.slack is None and bool(right.all()):
            if golden.values.dtype != mine.values.dtype:  # a cast may overflow
                lost = ~mine.values.float().isfinite() & golden.values.float().isfinite()
                self.num_nonfinite += int(lost.sum())
            return  # nothing differs beyond the cast, so no sum is needed
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


def blocks(fit: WeightFit) -> Iterator[tuple[RowNumbers, RowBlock, RowBlock]]:
    """Golden and mine, block by block."""
    step = max(1, BLOCK // max(1, fit.mine.columns))
    for start in range(0, fit.mine.rows, step):
        rows = np.arange(start, min(fit.mine.rows, start + step))
        golden = fit.golden.gather(fit.layout.rows[rows])
        yield rows, golden, fit.mine.block(slice(start, start + rows.size))


def measure(fit: WeightFit) -> WeightMeasure:
    """Hold every element of mine against golden's."""
    found = WeightMeasure()
    if _same_bytes(fit):
        found.count = fit.mine.rows * fit.mine.columns
        return found
    for rows, golden, mine in blocks(fit):
        found.add(golden, mine, matching(golden, mine, fit.cast), rows)
    return found


def _same_bytes(fit: WeightFit) -> bool:
    """Whether mine has the bytes of golden's one part in the same order; it stops where not."""
    (part, *others), mine = fit.golden.parts, fit.mine
    is_plain = not others and part.dtype == mine.dtype and part.scale is None is mine.scale
    if not is_plain or part.bits.shape != mine.bits.shape or not _is_identity(fit):
        return False
    a, b = part.bits, mine.bits
    if not (a.flags.c_contiguous and b.flags.c_contiguous):
        return False
    one, other = (each.reshape(-1).view(np.uint8) for each in (a, b))
    step = BLOCK * 4
    return all(
        bool((_words(one[i : i + step]) == _words(other[i : i + step])).all())
        for i in range(0, one.size, step)
    )


def _is_identity(fit: WeightFit) -> bool:
    rows = fit.layout.rows
    return rows.size == fit.golden.rows and bool((rows == np.arange(rows.size)).all())


def _words(octets: NDArray[np.uint8]) -> NDArray[np.unsignedinteger]:
    is_even = octets.size % 8 == 0 and octets.ctypes.data % 8 == 0
    return octets.view(np.uint64) if is_even else octets


def near(right: Tensor, mine: RowBlock) -> Tensor:
    """Which elements of mine are `right` but for two roundings, and half a step of codes."""
    dtype = mine.values.dtype
    roundoff = torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.5
    least = torch.finfo(dtype).smallest_normal if dtype.is_floating_point else 0.5
    slack = 2.5 * roundoff * right.abs() + least
    if mine.slack is not None:
        slack = slack + mine.slack.double() * 1.1
    return (mine.values.double() - right).abs() <= slack
