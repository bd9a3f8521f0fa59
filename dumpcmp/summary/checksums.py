"""A digest that any number of threads, and of ranks, can add up in any order: the checksum.

Each element's bits are multiplied by an odd number that its index in the whole tensor decides, and
all are added, in unsigned words of 64 bits that wrap. docs/format.md tells it to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.value import Integers, Portion, Value
from dumpcmp.summary.sketch import mix, runs

PAGE = 4096  # elements whose factors differ by a common one from those of other pages
_LINES, _PAGES = 0x452821E638D01377, 0xBE5466CF34E90C6C  # where the factors begin
_CHUNK = 64 * PAGE

Words64 = NDArray[np.uint64]


@cache
def line_factors() -> Words64:
    """The factors of the elements of a page."""
    return mix(np.uint64(_LINES) + np.arange(PAGE, dtype=np.uint64)) | np.uint64(1)


def page_factors(first: int, last: int) -> Words64:
    """The factors of the pages from `first` up to `last`."""
    return mix(np.uint64(_PAGES) + np.arange(first, last, dtype=np.uint64)) | np.uint64(1)


def checksum(value: Value, portion: Portion | None = None) -> str:
    """The checksum of `value`, hexadecimal; `portion` says where a shard lies in its whole."""
    line = value.line()
    words = line.bits.view(f"u{line.bits.dtype.itemsize}")
    if portion is None:
        return spelled(_of_pages(words))
    portion = portion.in_parts() if value.line().numel > value.numel else portion
    return spelled(_of_runs(words, *runs(portion)))


def _folded(words: NDArray[np.unsignedinteger]) -> Words64:
    """`words` as 64 bits; of those that have so many, the upper ones are added to the lower too.

    Otherwise two flipped signs of float64 would add up to 2**64, which is nothing.
    """
    wide = words.astype(np.uint64)
    return wide ^ (wide >> np.uint64(32)) ^ (wide >> np.uint64(48)) if words.itemsize == 8 else wide


def _of_pages(words: NDArray[np.unsignedinteger]) -> int:
    total = np.uint64(0)
    with np.errstate(over="ignore"):
        for low in range(0, words.size, _CHUNK):
            wide = np.zeros(min(_CHUNK, -(-(words.size - low) // PAGE) * PAGE), np.uint64)
            wide[: words.size - low] = _folded(words[low : low + _CHUNK])
            pages = np.einsum("ij,j->i", wide.reshape(-1, PAGE), line_factors())
            factors = page_factors(low // PAGE, low // PAGE + pages.size)
            total += (pages * factors).sum(dtype=np.uint64)
    return int(total)


def _of_runs(words: NDArray[np.unsignedinteger], starts: Integers, lengths: Integers) -> int:
    total, done = np.uint64(0), 0
    with np.errstate(over="ignore"):
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            places = np.arange(start, start + length)
            first = start // PAGE
            pages = page_factors(first, (start + length - 1) // PAGE + 1)
            factors = line_factors()[places % PAGE] * pages[places // PAGE - first]
            total += (_folded(words[done : done + length]) * factors).sum(dtype=np.uint64)
            done += length
    return int(total)


def spelled(total: int) -> str:
    """A checksum as text."""
    return f"{total % 2**64:016x}"


def added(checksums: Iterable[str]) -> str:
    """The checksum of the whole whose shards have these; empty where one has none."""
    held = list(checksums)
    return spelled(sum(int(one, 16) for one in held)) if all(held) else ""
