"""Values read block by block, and the distance of two floats in ULPs."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.value import Dtype, Kind, Value, widen

BLOCK = 1 << 17  # elements worked on together: few enough for the cache, many for few calls
_ROW = (64, 8192)  # shortest and longest row whose error is measured on its own
_PIECE = 4096  # the row length where the shape gives none between those
_SAFE = (1e-8, 1e15)  # magnitudes whose squares, and those of their errors, float32 can sum

Numbers = NDArray[np.floating]
Width = np.dtype[np.floating]
FLOAT32: Width = np.dtype(np.float32)
FLOAT64: Width = np.dtype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """Both sides as lines of real numbers, the type to compute in, and the length of a row."""

    golden: Value
    target: Value
    width: Width
    row: int
    parts: int  # numbers an element: two for complex

    @classmethod
    def of(cls, golden: Value, target: Value) -> Lines:
        """Lay two values of one shape side by side; where one is complex, so is the other."""
        one, two = (_like(*sides).line() for sides in ((golden, target), (target, golden)))
        parts = 2 if Kind.COMPLEX in (golden.dtype.kind, target.dtype.kind) else 1
        width = max(width_of(one.dtype), width_of(two.dtype))
        return cls(one, two, width, row_of(golden.shape, parts), parts)

    @property
    def whole_numbers(self) -> bool:
        """Whether both sides are integers or booleans, of which any difference counts."""
        kinds = {self.golden.dtype.kind, self.target.dtype.kind}
        names = {self.golden.dtype.name, self.target.dtype.name}
        return kinds <= {Kind.INT, Kind.BOOL} and (len(names) == 1 or "uint64" not in names)

    def spans(self) -> Iterator[tuple[slice, int]]:
        """Spans of whole rows that cover all elements, the rest as one short row at the end."""
        return spans(self.golden.numel, self.row)


def spans(size: int, row: int, block: int = BLOCK) -> Iterator[tuple[slice, int]]:
    """Spans of at most `block` elements, in whole rows, the rest as one short row at the end."""
    step = max(1, block // row) * row
    whole = size - size % row
    for start in range(0, whole, step):
        yield slice(start, min(start + step, whole)), row
    if whole < size:
        yield slice(whole, size), size - whole


def _like(value: Value, other: Value) -> Value:
    if other.dtype.kind is not Kind.COMPLEX or value.dtype.kind is Kind.COMPLEX:
        return value
    return Value(other.dtype, value.numbers().astype(other.dtype.storage))


@lru_cache(1024)
def row_of(shape: tuple[int, ...], parts: int) -> int:
    """How many trailing elements make a row of useful length, else a fixed piece."""
    length = parts
    for size in reversed(shape):
        if length >= _ROW[0]:
            break
        length *= size
    return length if _ROW[0] <= length <= _ROW[1] else _PIECE


def width_of(dtype: Dtype) -> Width:
    """The type to compute in: float64 where float32 cannot hold the elements."""
    return FLOAT32 if dtype.kind is Kind.FLOAT and dtype.nbytes <= 4 else FLOAT64


def read(line: Value, span: slice, width: Width) -> Numbers:
    """The numbers of `span`, ready to compute with."""
    return widen(line.bits[span], line.dtype).astype(width, copy=False)


def is_safe(magnitude: float) -> bool:
    """Whether float32 can sum squares of numbers up to `magnitude`, and of their errors."""
    return not magnitude or _SAFE[0] < magnitude < _SAFE[1]


def nonfinite_counts(numbers: Numbers) -> tuple[int, int, int]:
    """How many of `numbers` are NaN, positive and negative infinities."""
    ufuncs = (np.isnan, np.isposinf, np.isneginf)
    num_nan, num_posinf, num_neginf = (int(np.count_nonzero(is_so(numbers))) for is_so in ufuncs)
    return num_nan, num_posinf, num_neginf


class Scratch:
    """Arrays of one block that are written again and again, so that no block allocates."""

    def __init__(self, width: Width) -> None:
        self.difference, self.error, self.magnitude, self.spare = np.empty((4, BLOCK), width)
        self.far = np.empty(BLOCK, np.bool_)


_scratches = threading.local()  # one of each width for every thread


def scratch_of(width: Width) -> Scratch:
    """The arrays of this thread, made once: fresh memory costs more than the work in it."""
    found: Scratch | None = getattr(_scratches, width.char, None)
    if found is None:
        found = Scratch(width)
        setattr(_scratches, width.char, found)
    return found


def ulps_between(golden: NDArray[np.generic], target: NDArray[np.generic]) -> float:
    """The largest number of steps from `golden` to `target`, both the finite bits of one dtype.

    Bits of one sign are in the order of their floats; across zero the two magnitudes add up.
    """
    if not golden.size:
        return math.nan
    a, b = _integers(golden), _integers(target)
    across = (a ^ b) < 0
    apart = a - b
    if not across.any():
        return float(np.abs(apart, out=apart).max())
    apart[across] = 0
    top = np.iinfo(a.dtype).max
    sums = (a[across] & top).astype(np.float64) + (b[across] & top)
    return max(float(np.abs(apart, out=apart).max()), float(sums.max()))


def _integers(bits: NDArray[np.generic]) -> NDArray[np.int64]:
    return bits.view(f"i{bits.itemsize}")


def spacings_between(golden: Numbers, error: Numbers, dtype: Dtype) -> float:
    """The largest `error`, in spacings of `dtype` around the `golden` number."""
    if not golden.size:
        return math.nan
    _, exponent = np.frexp(golden)
    spacing = np.ldexp(dtype.eps, np.maximum(exponent - 1, dtype.least_exponent))
    return float((error / spacing).max())
