"""A look at one side of a pair: extremes, sums, and the elements that are not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dumpcmp.measure import core
from dumpcmp.measure.blocks import Numbers, Width, is_safe, nonfinite_counts, read, spans
from dumpcmp.measure.lanes import laid, row_sums, total
from dumpcmp.nouns.row import Extent
from dumpcmp.nouns.value import Value


class Glance(NamedTuple):
    """What is found in one block of a side; the fields are those of the C core's record."""

    low: float
    high: float
    num_finite: float
    num_nan: float
    num_inf: float
    sum: float
    squares: float

    @property
    def is_plain(self) -> bool:
        """Whether all is finite, and its squares can be summed in whatever type it is."""
        return not self.num_nan + self.num_inf and is_safe(max(-self.low, self.high))


def glance_at(numbers: Numbers, row: int, unit: float) -> Glance:
    """Look at one block: in float64 where squares need it, or an element is not finite."""
    low, high = float(numbers.min()), float(numbers.max())
    num_nan, num_inf, num_finite = 0, 0, numbers.size
    finite = math.isfinite(low) and math.isfinite(high)
    if not finite:
        num_nan, *infinities = nonfinite_counts(numbers)
        num_inf = sum(infinities)
        kept = numbers[np.isfinite(numbers)]
        num_finite = kept.size
        low, high = (float(kept.min()), float(kept.max())) if kept.size else (math.inf, -math.inf)
    if unit != 1.0 or not finite or not is_safe(max(-low, high)):
        numbers = np.where(np.isfinite(numbers), numbers, 0).astype(np.float64) / unit
    x = laid(numbers, row)
    sums, squares = total(row_sums(x)), total(row_sums(x * x))
    return Glance(low, high, num_finite, num_nan, num_inf, sums, squares)


@dataclass(slots=True)
class Survey:
    """What a look at one side tells."""

    unit: float = 1.0  # numbers are divided by it before they are squared
    min: float = math.inf
    max: float = -math.inf
    num_finite: int = 0
    num_nan: int = 0
    num_inf: int = 0
    sum: float = 0.0  # in `unit`
    squares: float = 0.0  # in `unit` squared

    @classmethod
    def of(cls, unit: float, blocks: Sequence[Sequence[float]]) -> Survey:
        """The blocks of a side, taken together in their order."""
        survey = cls(unit)
        for low, high, num_finite, num_nan, num_inf, added, squares in blocks:
            survey.min, survey.max = min(survey.min, low + 0.0), max(survey.max, high + 0.0)
            survey.num_finite += int(num_finite)
            survey.num_nan += int(num_nan)
            survey.num_inf += int(num_inf)
            survey.sum += added
            survey.squares += squares
        return survey

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


def surveyed(line: Value, width: Width, row: int, unit: float = 1.0) -> Survey:
    """Look at all numbers of a line; where squares leave the range of float64, again in a unit."""
    survey = Survey.of(unit, _sides(line, width, row, unit))
    if survey.credible or unit != 1.0:
        return survey
    return surveyed(line, width, row, unit_for(survey.magnitude))


def _sides(line: Value, width: Width, row: int, unit: float) -> Sequence[Sequence[float]]:
    if core.IS_BUILT:
        return core.surveyed(line, width, row, unit)
    with np.errstate(all="ignore"):
        return [
            glance_at(read(line, span, width), length, unit)
            for span, length in spans(line.numel, row)
        ]


def unit_for(magnitude: float) -> float:
    """A power of two near `magnitude`, so that dividing by it rounds nothing."""
    return 2.0 ** min(1000, math.frexp(magnitude)[1])
