"""Values read block by block, and sums over a block that keep float64's precision."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.dtypes import Kind, widen
from dumpcmp.nouns.row import Extent
from dumpcmp.nouns.value import Value

BLOCK = 1 << 17  # elements worked on together: few enough for the cache, many for few calls
_ROW = (64, 8192)  # shortest and longest row whose error is measured on its own
_PIECE = 4096  # the row length where the shape gives none between those
_SAFE = (1e-8, 1e15)  # magnitudes whose squares, and those of their errors, float32 can sum

Numbers = NDArray[np.floating]
Width = np.dtype[np.floating]
FLOAT32: Width = np.dtype(np.float32)
FLOAT64: Width = np.dtype(np.float64)


def width_of(line: Value) -> Width:
    """The type to compute in: float64 where float32 cannot hold the elements."""
    return FLOAT32 if line.dtype.kind is Kind.FLOAT and line.dtype.nbytes <= 4 else FLOAT64


def read(line: Value, span: slice, width: Width) -> Numbers:
    """The numbers of `span`, ready to compute with."""
    return widen(line.bits[span], line.dtype).astype(width, copy=False)


def row_length(shape: tuple[int, ...]) -> int:
    """How many trailing elements make a row of useful length, else a fixed piece."""
    length = 1
    for size in reversed(shape):
        length *= size
        if length >= _ROW[0]:
            break
    return length if _ROW[0] <= length <= _ROW[1] else _PIECE


def spans(size: int, row: int) -> Iterator[tuple[slice, int]]:
    """Spans of whole rows that cover `size` elements, the rest as one short row at the end."""
    step = max(1, BLOCK // row) * row
    whole = size - size % row
    for start in range(0, whole, step):
        yield slice(start, min(start + step, whole)), row
    if whole < size:
        yield slice(whole, size), size - whole


def is_safe(magnitude: float) -> bool:
    """Whether float32 can sum squares of numbers up to `magnitude`, and of their errors."""
    return not magnitude or _SAFE[0] < magnitude < _SAFE[1]


_ONES = {width: np.ones(BLOCK, width) for width in (FLOAT32, FLOAT64)}


def dot(a: Numbers, b: Numbers) -> float:
    """The inner product of two blocks."""
    return float(np.dot(a, b))


def sum_of(numbers: Numbers) -> float:
    """The sum of a block."""
    return float(np.dot(numbers, _ONES[numbers.dtype][: numbers.size]))


def row_dots(a: Numbers, b: Numbers, row: int) -> NDArray[np.float64]:
    """The inner product of each row of `a` with that of `b`."""
    products: Numbers = np.matmul(a.reshape(-1, 1, row), b.reshape(-1, row, 1))
    return products.reshape(-1).astype(np.float64)


def row_squares(numbers: Numbers, row: int) -> NDArray[np.float64]:
    """The squared norm of each row."""
    return row_dots(numbers, numbers, row)


def row_sums(numbers: Numbers, row: int) -> NDArray[np.float64]:
    """The sum of each row."""
    sums: NDArray[np.float64] = numbers.reshape(-1, row).sum(axis=1, dtype=np.float64)
    return sums


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
            numbers = self._only_finite(numbers)
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
        self.squares += dot(numbers, numbers)

    def _only_finite(self, numbers: Numbers) -> Numbers:
        finite = numbers[np.isfinite(numbers)]
        num_nan = int(np.count_nonzero(np.isnan(numbers)))
        self.num_nan += num_nan
        self.num_inf += numbers.size - finite.size - num_nan
        return finite

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
        """The root of the mean square."""
        return self.unit * math.sqrt(self.squares / self.num_finite) if self.num_finite else 0.0

    @property
    def mean(self) -> float:
        """The mean."""
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
