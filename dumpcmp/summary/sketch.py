"""The linear sketch RCS-64: a few hundred sums from which the distance of two tensors is told.

Version 1 of the specification, which `docs/format.md` states for other implementations. Every
element goes, with a sign, into one bucket; sign and bucket depend only on the element's index
in the whole tensor, flat and row-major. So sketches subtract and add like the tensors they
stand for: those of shards add up to the whole's, and those of partial sums to the sum's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from dumpcmp.measure.blocks import FLOAT64, scratch_of
from dumpcmp.nouns.built import built
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.value import Integers, Portion

VERSION = 1
RUN = 64  # consecutive elements that go to consecutive buckets
BLOCK = 256 * RUN  # elements that share one rotation
SIZES = tuple(2**power for power in range(6, 13))  # 64 ... 4096 buckets

Floats = NDArray[np.float64]
Reals = NDArray[np.floating]
Words = NDArray[np.uint64]

_GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
_SEED_STEP = 0xD1342543DE82EF95
_BLOCKS, _SIGNS, _BASES = 0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """Signed sums of a tensor's elements: `sums` has a row for each hash, `size` buckets a row."""

    sums: Floats
    seed: int = 0  # row j is hashed with seed + j

    @property
    def num_hashes(self) -> int:
        """Rows, each an independent sketch of the same tensor."""
        return len(self.sums)

    @property
    def size(self) -> int:
        """Buckets of one row."""
        return int(self.sums.shape[1])

    def __add__(self, other: Sketch) -> Sketch:
        mine, its = alike(self, other)
        return Sketch(mine.sums + its.sums, self.seed)

    def __sub__(self, other: Sketch) -> Sketch:
        mine, its = alike(self, other)
        return Sketch(mine.sums - its.sums, self.seed)

    def __mul__(self, factor: float) -> Sketch:
        return Sketch(self.sums * factor, self.seed)

    def folded(self, size: int) -> Sketch:
        """The sketch with `size` buckets, which this one's buckets add up to."""
        if size > self.size:
            raise CheckError(f"a sketch of {self.size} buckets cannot be unfolded to {size}")
        return Sketch(self.sums.reshape(self.num_hashes, -1, size).sum(axis=1), self.seed)

    def norm(self) -> float:
        """The estimate of the tensor's Euclidean norm."""
        return math.sqrt(float(np.square(self.sums).sum(axis=1).mean()))


def alike(first: Sketch, second: Sketch) -> tuple[Sketch, Sketch]:
    """Both sketches at the size and number of hashes that they share."""
    if first.seed != second.seed:
        raise CheckError(
            f"sketches of seed {first.seed} and {second.seed} cannot be compared",
            hint="compact both archives with the same --seed",
        )
    size, rows = min(first.size, second.size), min(first.num_hashes, second.num_hashes)
    one, two = (Sketch(s.sums[:rows], s.seed).folded(size) for s in (first, second))
    return one, two


def spread(size: int, num_hashes: int = 1) -> float:
    """Relative standard deviation of a norm that is estimated from `size` buckets.

    The second term is measured: it appears where a few outlier channels hold the difference.
    """
    return math.sqrt((1 / (2 * size) + 1 / 2048) / num_hashes)


def mix(words: Words) -> Words:
    """The finaliser of splitmix64."""
    z = words + _GOLDEN_RATIO
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _key(constant: int, seed: int) -> np.uint64:
    return np.uint64(mix(np.array([constant ^ (seed * _SEED_STEP % 2**64)], np.uint64))[0])


@dataclass(frozen=True, slots=True, eq=False)
class Hash:
    """The tables of one seed. `signs[j]` is +1 or -1 for bit j % 64 of sign word j // 64."""

    block_key: np.uint64
    words: Words  # T of the specification: 512 sign words
    bases: Integers  # R: where each run of a block begins in the buckets
    signs: Floats

    def turns(self, blocks: Integers) -> tuple[Integers, ...]:
        """Rotation, offset of the sign words, and common sign of each of `blocks`."""
        z = mix(self.block_key + blocks.astype(np.uint64))
        rotation, offset = z & np.uint64(255), (z >> np.uint64(8)) & np.uint64(255)
        common = 1 - 2 * (z >> np.uint64(63)).astype(np.int64)
        return rotation.astype(np.int64), offset.astype(np.int64), common


@cache
def hash_of(seed: int) -> Hash:
    """The tables of `seed`."""
    words = mix(_key(_SIGNS, seed) + np.arange(512, dtype=np.uint64))
    bases = (mix(_key(_BASES, seed) + np.arange(256, dtype=np.uint64)) >> np.uint64(52)).astype(
        np.int64
    )
    bits = (words[:, None] >> np.arange(RUN, dtype=np.uint64)) & np.uint64(1)
    signs = 1.0 - 2.0 * bits.reshape(-1).astype(np.float64)
    return Hash(_key(_BLOCKS, seed), words, bases, signs)


def cells(indices: Integers, size: int, seed: int = 0) -> tuple[Integers, Integers]:
    """Bucket and sign of the elements with these flat indices: the specification, word by word."""
    table = hash_of(seed)
    lane, run = indices & 63, (indices >> 6) & 255
    rotation, offset, common = table.turns(indices >> 14)
    bit = (table.words[run + offset] >> lane.astype(np.uint64)) & np.uint64(1)
    bucket = (lane + table.bases[(run + rotation) & 255]) & (size - 1)
    return bucket, common * (1 - 2 * bit.astype(np.int64))


def runs(portion: Portion) -> tuple[Integers, Integers]:
    """Where the shard's contiguous runs begin in the whole, as flat indices, and their lengths."""
    starts, stride = np.zeros(1, np.int64), 1
    length, dim = 1, len(portion.dims)
    while dim and _is_whole(portion.dims[dim - 1], portion.whole[dim - 1]):
        dim -= 1
        length = stride = stride * portion.whole[dim]
    for index, extent in zip(
        reversed(portion.dims[:dim]), reversed(portion.whole[:dim]), strict=True
    ):
        starts = ((index * stride)[:, None] + starts[None, :]).reshape(-1)
        stride *= extent
    first = np.flatnonzero(np.diff(starts, prepend=-length - 1) != length)
    return starts[first], np.diff(first, append=starts.size) * length


def _is_whole(index: Integers, extent: int) -> bool:
    return index.size == extent and bool((index == np.arange(extent)).all())


# Of numbers, their width, start, block key, signs and their words, bases and the sums to add to:
# the first Totals.
# Where it was not built numpy takes three times as long.
absorb: Callable[..., tuple[float, float, float, float, int]] | None
absorb = getattr(built("dumpcmp.summary._onepass"), "absorb", None)


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
                    table.signs, table.words, table.bases, room,
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
