"""How the rows of a weight of mine lie over golden's: in order, by groups, sharded, padded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dumpcmp.weights.casting import Cast, casts, matching
from dumpcmp.weights.matrices import Matrix, RowBlock, sampled_columns

PADDING = -1
_PROBED = 64  # rows that are looked at before all are
_LIKELY = 0.5  # a cosine that unrelated weights do not have
_MOST_GROUPS = 64  # sizes of groups that are tried

RowNumbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """For each row of mine the row of golden's stacked parts that it should be; -1 is padding."""

    rows: RowNumbers
    shard: int = 0  # which of `shards` equal pieces of golden's rows or columns it is
    shards: int = 1
    by_columns: bool = False
    num_groups: int = 1  # the parts take turns so often
    transposed: bool = False

    @property
    def num_padded(self) -> int:
        """RowNumbers at the end that golden does not have."""
        return int((self.rows == PADDING).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Stacked:
    """Golden's parts, one above the other."""

    parts: Sequence[Matrix]

    @property
    def rows(self) -> int:
        """RowNumbers of all parts."""
        return sum(part.rows for part in self.parts)

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers that `gather` gives; where parts differ, that of the first."""
        return self.parts[0].torch_dtype

    def gather(self, rows: RowNumbers, columns: RowNumbers | None = None) -> RowBlock:
        """The rows with these numbers; padding is zero."""
        num_columns = self.parts[0].columns if columns is None else columns.size
        values: Tensor | None = None
        slack: Tensor | None = None
        first = 0
        for part in self.parts:
            at = np.flatnonzero((rows >= first) & (rows < first + part.rows))
            if at.size:
                block = part.block(_as_slice(rows[at] - first), columns)
                if at.size == rows.size:
                    return block
                if values is None:
                    values = torch.zeros(rows.size, num_columns, dtype=self.dtype)
                values[torch.from_numpy(at)] = block.values.to(self.dtype)
                if block.slack is not None:
                    slack = torch.zeros(values.shape) if slack is None else slack
                    slack[torch.from_numpy(at)] = block.slack
            first += part.rows
        if values is None:
            values = torch.zeros(rows.size, num_columns, dtype=self.dtype)
        return RowBlock(values, slack)

    def columns_of(self, number: int, of: int) -> Stacked:
        """The same of some columns alone."""
        return Stacked([part.columns_of(number, of) for part in self.parts])


def _as_slice(rows: RowNumbers) -> slice | RowNumbers:
    """Numbers that rise by one as a slice, which copies nothing."""
    first, last = int(rows[0]), int(rows[-1])
    is_run = last - first + 1 == rows.size and bool((np.diff(rows) == 1).all())
    return slice(first, last + 1) if is_run else rows


def row_layouts(sizes: Sequence[int], rows: int, rank: int, world_size: int) -> Iterator[RowLayout]:
    """Every accepted way in which `rows` rows are made of parts of `sizes` rows."""
    total = sum(sizes)
    implied = total // rows if rows and total % rows == 0 else 1
    pieces = sorted({*_divisors(world_size), implied})
    for first in pieces:
        for others in pieces if len(sizes) > 1 else [first]:
            if others <= first:
                yield from _sharded(sizes, rows, rank, first, others)
    if len(sizes) == 1:
        for shards in pieces:
            if 0 < rows * shards - sizes[0] < rows:
                yield _padded(sizes[0], rows, rank % shards, shards)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _sharded(
    sizes: Sequence[int], rows: int, rank: int, first: int, others: int
) -> Iterator[RowLayout]:
    """The first part in `first` pieces, the others in as many or fewer, as keys and values are."""
    counts = [first] + [others] * (len(sizes) - 1)
    shares = [size // count for size, count in zip(sizes, counts, strict=True)]
    if sum(shares) != rows or any(s % c for s, c in zip(sizes, counts, strict=True)):
        return
    offsets = np.cumsum([0, *sizes[:-1]])
    for shard in sorted(range(first), key=lambda each: each != rank % first):
        runs = [
            offset + share * (shard * count // first) + np.arange(share)
            for offset, share, count in zip(offsets, shares, counts, strict=True)
        ]
        yield RowLayout(np.concatenate(runs), shard, first)
        common = math.gcd(*shares) if len(sizes) > 1 else 1
        for groups in _divisors(common)[1:][:_MOST_GROUPS] if common <= 1 << 20 else ():
            turns = np.concatenate([run.reshape(groups, -1) for run in runs], axis=1)
            yield RowLayout(turns.reshape(-1), shard, first, num_groups=groups)


def _padded(size: int, rows: int, shard: int, shards: int) -> RowLayout:
    numbers = shard * rows + np.arange(rows)
    return RowLayout(np.where(numbers < size, numbers, PADDING), shard, shards)


@dataclass(frozen=True, slots=True, eq=False)
class WeightFit:
    """Mine beside golden by a layout that their shapes allow."""

    mine: Matrix
    golden: Stacked
    layout: RowLayout
    cast: Cast


def best_fit(parts: Sequence[Matrix], mine: Matrix, rank: int, world_size: int) -> WeightFit | None:
    """The layout that most rows agree with, of those that the shapes allow; None without any."""
    best: tuple[tuple[float, ...], WeightFit] | None = None
    for fit in _fits(parts, mine, rank, world_size):
        rating = _rating(fit)
        if best is None or rating > best[0]:
            best = rating, fit
        if rating[0] == 1:
            break
    return best[1] if best else None


def _fits(parts: Sequence[Matrix], mine: Matrix, rank: int, world_size: int) -> Iterator[WeightFit]:
    sizes = [part.rows for part in parts]
    for transposed in (False, True):
        side = mine.transposed if transposed else mine
        if parts[0].columns % max(1, side.columns) or len({part.columns for part in parts}) > 1:
            continue
        shards = parts[0].columns // max(1, side.columns)
        for shard in sorted(range(shards), key=lambda each: each != rank % shards):
            golden = Stacked(parts) if shards == 1 else Stacked(parts).columns_of(shard, shards)
            for found in row_layouts(sizes, side.rows, rank, world_size):
                if shards > 1 and found.shards > 1:
                    continue
                layout = RowLayout(
                    found.rows, shard if shards > 1 else found.shard, max(shards, found.shards),
                    shards > 1, found.num_groups, transposed,
                )  # fmt: skip
                for cast in casts(golden.dtype, side.torch_dtype):
                    yield WeightFit(side, golden, layout, cast)


def _rating(fit: WeightFit) -> tuple[float, ...]:
    """How many probed rows agree; where none does, which layout is the likelier one."""
    rows = fit.mine.rows
    probed = np.unique(np.linspace(0, max(0, rows - 1), min(rows, _PROBED)).astype(np.int64))
    columns = sampled_columns(fit.mine.columns)
    mine = fit.mine.block(probed, columns)
    golden = fit.golden.gather(fit.layout.rows[probed], columns)
    agreement = float(matching(golden, mine, fit.cast).all(1).double().mean())
    if agreement == 1:
        return (1.0,)
    one, other = (each.values.double().reshape(-1) for each in (golden, mine))
    cosine = float(torch.cosine_similarity(one, other, dim=0).abs())
    return agreement, cosine if cosine > _LIKELY else 0.0, float(fit.layout.shards == 1)


def agreeing(fit: WeightFit, rows: RowNumbers) -> float:
    """The share of these rows of mine whose sampled elements are golden's."""
    if not rows.size:
        return 1.0
    columns = sampled_columns(fit.mine.columns)
    mine = fit.mine.block(rows, columns)
    golden = fit.golden.gather(fit.layout.rows[rows], columns)
    return float(matching(golden, mine, fit.cast).all(1).double().mean())
