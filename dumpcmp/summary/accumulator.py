"""Adds the numbers of a tensor up to its totals and its Sketch, piece by piece."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from dumpcmp.measure.blocks import FLOAT64, scratch_of
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.value import Integers
from dumpcmp.summary.sketch import BLOCK, RUN, SIZES, Floats, Reals, Sketch, hash_of

# Of numbers, their width, start, block key, signs, bases and the sums to add to: the first Totals.
absorb: Callable[..., tuple[float, float, float, float, int]] | None
try:
    absorb = import_module("dumpcmp.summary._onepass").absorb
except ImportError:  # it was not built, for want of a C compiler: numpy takes three times as long
    absorb = None


@dataclass(slots=True)  # and not frozen: every run of a shard makes two
class Totals:
    """Extremes and sums of the finite numbers among some, and counts of the others. They add."""

    min: float = math.inf
    max: float = -math.inf
    sum: float = 0.0
    sum_squares: float = 0.0
    num_zero: int = 0
    num_nan: int = 0
    num_posinf: int = 0
    num_neginf: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            min(self.min, other.min),
            max(self.max, other.max),
            self.sum + other.sum,
            self.sum_squares + other.sum_squares,
            self.num_zero + other.num_zero,
            self.num_nan + other.num_nan,
            self.num_posinf + other.num_posinf,
            self.num_neginf + other.num_neginf,
        )


class Accumulator:
    """Adds runs of elements, each at its place in the whole, and gives their Sketch."""

    def __init__(self, size: int, seed: int = 0, num_hashes: int = 1) -> None:
        if size not in SIZES:
            raise CheckError(
                f"a sketch of {size} buckets is not possible",
                hint=f"the sizes are {', '.join(map(str, SIZES))}",
            )
        self.size, self.seed = size, seed
        self._hashes = [hash_of(seed + row) for row in range(num_hashes)]
        # Rows of `absorb`: blocks of either sign, and room for the run that begins last.
        self._near = np.zeros((num_hashes, 2, size + RUN))
        self._turned: Floats | None = None

    def absorb(self, numbers: NDArray[np.generic], start: int) -> Totals | None:
        """Add `numbers` that lie in the whole from flat index `start`, in one pass over them.

        They are float64, float32, or the bits of bfloat16 in uint16. None: they are not all
        finite, or compiled code is missing; then nothing was added.
        """
        if absorb is None:
            return None
        numbers = np.require(numbers, requirements=("C", "ALIGNED"))
        near = np.zeros_like(self._near)
        for table, room in zip(self._hashes, near, strict=True):
            found = Totals(
                *absorb(
                    numbers, numbers.itemsize, start, int(table.block_key),
                    table.signs, table.bases, room,
                )
            )  # fmt: skip
        if not math.isfinite(found.sum_squares):
            return None
        self._near += near
        return found

    def add(self, numbers: Reals, start: int) -> None:
        """Add finite `numbers` that lie one after another in the whole, from flat index `start`."""
        if not numbers.size or self.absorb(numbers, start) is not None:
            return
        signed = scratch_of(FLOAT64).error
        for offset, length in pieces(start, numbers.size):
            block, within = divmod(start + offset, BLOCK)
            product, piece = signed[:length], numbers[offset : offset + length]
            for row, table in enumerate(self._hashes):
                rotation, first, common = turn(self.seed + row, block)
                np.multiply(piece, table.signs[RUN * first + within :][:length], out=product)
                room = self._wide[row, RUN * rotation + within :][:length]
                (np.add if common > 0 else np.subtract)(room, product, out=room)

    def scatter(self, numbers: Reals, indices: Integers) -> None:
        """Add finite `numbers` that lie anywhere, at these flat indices of the whole."""
        lane, run = indices & 63, (indices >> 6) & 255
        for row, table in enumerate(self._hashes):
            rotation, offset, common = table.turns(indices >> 14)
            signs = table.signs[RUN * (run + offset) + lane] * common
            place = RUN * ((run + rotation) & 255) + lane
            self._wide[row, :BLOCK] += np.bincount(
                place, signs * numbers.astype(np.float64), minlength=BLOCK
            )

    @property
    def _wide(self) -> Floats:
        """What numpy adds to: blocks turned by their rotations, before they are cut to buckets."""
        if self._turned is None:
            # A block turned by its rotation ends within twice its length; sketch() adds the halves.
            self._turned = np.zeros((len(self._hashes), 2 * BLOCK))
        return self._turned

    def sketch(self) -> Sketch:
        """The Sketch of all that was added."""
        sums = self._near[:, 0] - self._near[:, 1]
        sums[:, :RUN] += sums[:, self.size :]
        sums = sums[:, : self.size].copy()
        if self._turned is not None:
            for row, turned in enumerate(self._turned[:, :BLOCK] + self._turned[:, BLOCK:]):
                sums[row] += np.bincount(buckets_of(self.seed + row, self.size), turned, self.size)
        return Sketch(sums, self.seed)


@lru_cache(64)
def buckets_of(seed: int, size: int) -> Integers:
    """The bucket of each place of a block that is turned by its rotation."""
    return ((np.arange(RUN) + hash_of(seed).bases[:, None]) & (size - 1)).reshape(-1)


@lru_cache(4096)
def _turns_near(seed: int, page: int) -> list[tuple[int, int, int]]:
    blocks = np.arange(page * 256, page * 256 + 256, dtype=np.int64)
    columns = (column.tolist() for column in hash_of(seed).turns(blocks))
    return list(zip(*columns, strict=True))


def turn(seed: int, block: int) -> tuple[int, int, int]:
    """Rotation, offset of the sign words, and common sign of one block."""
    return _turns_near(seed, block >> 8)[block & 255]


def pieces(start: int, length: int) -> Iterator[tuple[int, int]]:
    """Cut the run of `length` from `start` at block borders: (offset in the run, length) each."""
    offset = 0
    while offset < length:
        step = min(BLOCK - (start + offset) % BLOCK, length - offset)
        yield offset, step
        offset += step
