"""Values by a few of their elements: enough to find the same value in another run."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dumpcmp.align.listing import Listing
from dumpcmp.align.turning import turned, turns_of
from dumpcmp.judge.tolerances import SAME_VALUE
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.value import Kind, Value, dtype_named

LoadValue = Callable[[Record], Value]
Doubles = NDArray[np.float64]
_MOST = 4096  # elements of a value that stand for it


@dataclass(frozen=True)
class Samples:
    """The values of one run, as far as their elements are kept and are floats."""

    listing: Listing
    load: LoadValue
    _taken: dict[Key, Doubles | None] = field(default_factory=dict)
    _norms: dict[Key, float] = field(default_factory=dict)

    def numbers(self, key: Key) -> Doubles | None:
        """All elements; None where they are not kept, or are no real floats."""
        record = self.listing.record(key)
        is_float = dtype_named(record.dtype).kind is Kind.FLOAT
        if record.kept is not Kept.FULL or not is_float or not math.prod(record.shape):
            return None
        return np.asarray(self.load(record).numbers(), np.float64)

    def few(self, key: Key) -> Doubles | None:
        """Some elements, the same ones of all values of as many."""
        key = self.listing.first(key)
        if key not in self._taken:
            every = self.numbers(key)
            self._taken[key] = None if every is None else few_of(every)
            self._norms[key] = math.nan if every is None else float(np.linalg.norm(every))
        return self._taken[key]

    def norm(self, key: Key) -> float:
        """The norm of all elements, in whatever order they lie; NaN where they are not kept."""
        self.few(key)
        return self._norms[self.listing.first(key)]

    def digest(self, key: Key) -> tuple[str, str] | None:
        """What the value is to the bit, where that is known."""
        record = self.listing.record(key)
        return (record.dtype, record.digest) if record.digest else None


def few_of(every: Doubles) -> Doubles:
    """Elements at even distances, which share no factor of two with any dim."""
    return every.reshape(-1)[:: every.size // _MOST | 1][:_MOST]


def distance(golden: Doubles, target: Doubles) -> float:
    """rel_l2, or infinity where there is none."""
    norm = float(np.linalg.norm(golden))
    if golden.shape != target.shape or not norm or not math.isfinite(norm):
        return math.inf
    apart = float(np.linalg.norm(target - golden)) / norm
    return apart if math.isfinite(apart) else math.inf


@dataclass(frozen=True)
class Shelf:
    """Values of one run, to be found by what they are."""

    samples: Samples
    _bits: dict[tuple[str, str], list[Key]] = field(default_factory=lambda: defaultdict(list))
    _sizes: dict[int, list[tuple[float, Key]]] = field(default_factory=dict)
    _norms: dict[int, list[tuple[float, Key]]] = field(default_factory=dict)  # of all elements

    @classmethod
    def of(cls, samples: Samples, keys: Iterable[Key]) -> Shelf:
        """Sort `keys` by their bits, and by their sizes and norms."""
        shelf = cls(samples)
        sizes: dict[int, list[tuple[float, Key]]] = defaultdict(list)
        norms: dict[int, list[tuple[float, Key]]] = defaultdict(list)
        for key in keys:
            digest, few = samples.digest(key), samples.few(key)
            if digest is not None:
                shelf._bits[digest].append(key)
            if few is not None:
                numel = math.prod(samples.listing.record(key).shape)
                sizes[numel].append((float(np.linalg.norm(few)), key))
                norms[numel].append((samples.norm(key), key))
        shelf._sizes.update({size: sorted(held) for size, held in sizes.items()})
        shelf._norms.update({size: sorted(held) for size, held in norms.items()})
        return shelf

    def like(self, key: Key, samples: Samples) -> Iterator[tuple[Key, float]]:
        """The values that `key` of the other run may be, and how far each is: 0 to the bit."""
        same = self._bits.get(samples.digest(key) or ("", ""), ())
        yield from ((other, 0.0) for other in same)
        few = samples.few(key)
        if few is None:
            return
        numel = math.prod(samples.listing.record(key).shape)
        found = 0
        for other in _around(self._sizes.get(numel, []), float(np.linalg.norm(few))):
            theirs = self.samples.few(other)
            apart = distance(few, theirs) if theirs is not None else math.inf
            if other not in same and apart <= SAME_VALUE:
                found += 1
                yield other, apart
        if not same and not found:
            yield from self._turned(key, samples)

    def _turned(self, key: Key, samples: Samples) -> Iterator[tuple[Key, float]]:
        """The values that `key` may be with its dims in another order."""
        ours, shape = None, samples.listing.record(key).shape
        for other in _around(self._norms.get(math.prod(shape), []), samples.norm(key)):
            ways = list(turns_of(shape, self.samples.listing.record(other).shape))
            theirs = self.samples.numbers(other) if len(shape) > 1 and ways else None
            ours = samples.numbers(key) if ours is None and theirs is not None else ours
            if ours is not None and theirs is not None:
                apart = min(distance(ours, turned(theirs, way, shape)) for way in ways)
                if apart <= SAME_VALUE:
                    yield other, apart


def _around(held: list[tuple[float, Key]], norm: float) -> Iterator[Key]:
    """The values whose norm is about `norm`."""
    low = bisect_left(held, norm * (1 - SAME_VALUE), key=lambda one: one[0])
    high = bisect_right(held, norm * (1 + SAME_VALUE), key=lambda one: one[0])
    yield from (key for _, key in held[low:high])
