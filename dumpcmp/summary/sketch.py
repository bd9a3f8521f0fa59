"""The linear sketch RCS-64: a few hundred sums from which the distance of two tensors is told.

Version 1 of the specification, which `docs/format.md` states for other implementations. Every
element goes, with a sign, into one bucket; sign and bucket depend only on the element's index
in the whole tensor, flat and row-major. So sketches subtract and add like the tensors they
stand for: those of shards add up to the whole's, and those of partial sums to the sum's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

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
