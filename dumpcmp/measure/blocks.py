"""Values read block by block, sums over a block that keep float64's precision, and ULPs."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.row import Extent
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
        width = max(width_of(one), width_of(two))
        return cls(one, two, width, _row(golden.shape, parts), parts)

    @property
    def whole_numbers(self) -> bool:
        """Whether both sides are integers or booleans, of which any difference counts."""
        kinds = {self.golden.dtype.kind, self.target.dtype.kind}
        names = {self.golden.dtype.name, self.target.dtype.name}
        return kinds <= {Kind.INT, Kind.BOOL} and (len(names) == 1 or "uint64" not in names)

    def spans(self) -> Iterator[tuple[slice, int]]:
        """Spans of whole rows that cover all elements, the rest as one short row at the end."""
        step = max(1, BLOCK // self.row) * self.row
        whole = self.golden.numel - self.golden.numel % self.row
        for start in range(0, whole, step):
            yield slice(start, min(start + step, whole)), self.row
        if whole < self.golden.numel:
            yield slice(whole, self.golden.numel), self.golden.numel - whole


def _like(value: Value, other: Value) -> Value:
    if other.dtype.kind is not Kind.COMPLEX or value.dtype.kind is Kind.COMPLEX:
        return value
    return Value(other.dtype, value.numbers().astype(other.dtype.storage))


def _row(shape: tuple[int, ...], parts: int) -> int:
    """How many trailing elements make a row of useful length, else a fixed piece."""
    length = parts
    for size in reversed(shape):
        if length >= _ROW[0]:
            break
        length *= size
    return length if _ROW[0] <= length <= _ROW[1] else _PIECE


def width_of(line: Value) -> Width:
    """The type to compute in: float64 where float32 cannot hold the elements."""
    return FLOAT32 if line.dtype.kind is Kind.FLOAT and line.dtype.nbytes <= 4 else FLOAT64


def read(line: Value, span: slice, width: Width) -> Numbers:
    """The numbers of `span`, ready to compute with."""
    return widen(line.bits[span], line.dtype).astype(width, copy=False)


def is_safe(magnitude: float) -> bool:
    """Whether float32 can sum squares of numbers up to `magnitude`, and of their errors."""
    return not magnitude or _SAFE[0] < magnitude < _SAFE[1]


_ONES = {width: np.ones(BLOCK, width) for width in (FLOAT32, FLOAT64)}


def sum_of(numbers: Numbers) -> float:
    """The sum of a block."""
    return float(np.dot(numbers, _ONES[numbers.dtype][: numbers.size]))


def row_dots(a: Numbers, b: Numbers, row: int) -> NDArray[np.float64]:
    """The inner product of each row of `a` with that of `b`."""
    products: Numbers = np.matmul(a.reshape(-1, 1, row), b.reshape(-1, row, 1))
    return products.reshape(-1).astype(np.float64)


def row_sums(numbers: Numbers, row: int) -> NDArray[np.float64]:
    """The sum of each row."""
    sums: NDArray[np.float64] = numbers.reshape(-1, row).sum(axis=1, dtype=np.float64)
    return sums


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


@dataclass(slots=True)
class Survey:
    """What a look at one side tells: extremes, sums, and the elements that are not finite."""

    unit: float = 1.0  # numbers are divided by it before they are squared
    min: float = math.inf
    max: float = -math.inf
    num_finite: int = 0
    num_nan: int = 0
    num_inf: int = 0
    sum: float = 0.0  # in `unit`
    squares: float = 0.0  # in `unit` squared

    def add(self, numbers: Numbers) -> None:
        """Take in the `numbers` of one block."""
        low, high = float(numbers.min()), float(numbers.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            num_nan, *num_inf = nonfinite_counts(numbers)
            self.num_nan, self.num_inf = self.num_nan + num_nan, self.num_inf + sum(num_inf)
            numbers = numbers[np.isfinite(numbers)]
            if not numbers.size:
                return
            low, high = float(numbers.min()), float(numbers.max())
        self.min, self.max = min(self.min, low), max(self.max, high)
        self.num_finite += numbers.size
        if self.unit != 1.0:
            numbers = numbers.astype(np.float64) / self.unit
        elif not is_safe(max(-low, high)):
            numbers = numbers.astype(np.float64)
        self.sum += sum_of(numbers)
        self.squares += float(np.dot(numbers, numbers))

    @property
    def num_odd(self) -> int:
        """Elements that are not finite."""
        return self.num_nan + self.num_inf

    @property
    def magnitude(self) -> float:
        """The largest absolute value."""
        return max(-self.min, self.max) if self.num_finite else 0.0

    @property
    def credible(self) -> bool:
        """Whether the squares neither overflowed nor vanished."""
        return math.isfinite(self.squares) and (self.squares > 0 or self.magnitude == 0)

    @property
    def rms(self) -> float:
        return self.unit * math.sqrt(self.squares / self.num_finite) if self.num_finite else 0.0

    @property
    def mean(self) -> float:
        return self.unit * self.sum / self.num_finite if self.num_finite else 0.0

    def extent(self) -> Extent:
        """The survey as the report shows it."""
        if not self.num_finite:
            return Extent(num_nan=self.num_nan, num_inf=self.num_inf)
        norm = self.unit * math.sqrt(self.squares)
        return Extent(self.min, self.max, self.mean, norm, self.num_nan, self.num_inf)


def surveyed(line: Value, width: Width, unit: float = 1.0) -> Survey:
    """Look at all numbers of a line; where squares leave the range of float64, again in a unit."""
    survey = Survey(unit)
    with np.errstate(over="ignore"):
        for start in range(0, line.numel, BLOCK):
            survey.add(read(line, slice(start, start + BLOCK), width))
    if survey.credible or unit != 1.0:
        return survey
    return surveyed(line, width, unit_for(survey.magnitude))


def unit_for(magnitude: float) -> float:
    """A power of two near `magnitude`, so that dividing by it rounds nothing."""
    return 2.0 ** min(1000, math.frexp(magnitude)[1])


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
