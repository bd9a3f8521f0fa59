"""Measures how far a target value lies from golden: blocks, float64 sums, and no opinion.

Golden is surveyed first, because its rms and mean are the units of the relative errors and of
the PCC; then one pass over blocks of both sides gives everything else, by the compiled core or by
numpy, to the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from dumpcmp.measure import core
from dumpcmp.measure.addends import NEAR, Units
from dumpcmp.measure.blocks import Lines, is_safe
from dumpcmp.measure.survey import Survey, surveyed, unit_for
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.row import USUAL, Closeness, Extent, Metrics
from dumpcmp.nouns.value import DTYPES, Value

_DOMINATES = 0.95  # golden's mean is taken off before squaring where it is this much of the rms
_TINY = 1e-15  # errors below it are squared in float64
_FEW_ROWS = 16  # rows below which their gains have no standard error to speak of


def measure(golden: Value, target: Value, closeness: Closeness = USUAL) -> Metrics:
    """Measure `target` against `golden`, which must have its shape.

    NaN and the infinities are counted and their places compared; all other numbers are of the
    elements that are finite on both sides. A complex value is measured as its real and imaginary
    parts.
    """
    if golden.shape != target.shape:
        raise CheckError(
            f"golden has shape {list(golden.shape)}, the target {list(target.shape)}",
            hint="only values of one shape can be measured: broadcasting would hide the fault",
        )
    if not golden.numel:
        return Metrics(count=0, equal=golden.dtype == target.dtype)
    if core.IS_BUILT and _is_right() and (found := core.measured(golden, target, closeness)):
        return found
    lines = Lines.of(golden, target)
    survey = surveyed(lines.golden, lines.width, lines.row)
    if golden.dtype == target.dtype and _are_same(lines):
        return Metrics.of_equals(golden.numel, survey.num_finite // lines.parts, survey.extent())
    return summed(lines, survey, closeness).metrics(golden.shape)


def extent_of(value: Value) -> tuple[int, Extent]:
    """How many elements of a value are finite, and its Extent, as `measure` has them."""
    if core.IS_BUILT and _is_right() and (found := core.surveyed_alone(value)):
        return found
    found_both = measure(value, value)
    return found_both.num_finite, found_both.golden


@cache
def _is_right() -> bool:
    """Whether the core comes to numpy's bits on this processor; where it does not, numpy is used.

    It is asked once, of a few pairs: the loops are compiled for processors on which nobody ran
    the tests.
    """
    pairs = list(_trials())
    found = [core.measured(*pair, USUAL) for pair in pairs]
    core.IS_BUILT = False
    core.IS_BUILT = repr(found) == repr([measure(*pair) for pair in pairs])
    return core.IS_BUILT


def _trials() -> Iterator[tuple[Value, Value]]:
    """Pairs that go through every loop: near, far, with zeros, not finite, shifted, of integers."""
    numbers = np.sin(np.arange(9 * 75)).reshape(9, 75) * np.arange(1, 10)[:, None]
    near, zeros = numbers * 1.001, np.where(numbers > 2, 0, numbers)
    odd = np.where(numbers > 5, np.nan, np.where(numbers < -5, -np.inf, numbers))
    for one, two in ((numbers, near), (zeros, near), (numbers, -near), (numbers + 50, near + 50),
                     (odd, near), (numbers, odd * 2)):  # fmt: skip
        for width in ("float32", "float64", "float16", "int32"):
            with np.errstate(invalid="ignore"):
                ours, theirs = (side.astype(DTYPES[width].storage) for side in (one, two))
            yield Value(DTYPES[width], ours), Value(DTYPES[width], theirs)
    for side in (near, odd):
        wide = side.astype(np.float32)
        short = Value(DTYPES["bfloat16"], (wide.view(np.uint32) >> 16).astype(np.uint16))
        yield short, Value(DTYPES["float32"], wide)
        yield short, Value(DTYPES["bfloat16"], np.roll(short.bits, 1))


def _are_same(lines: Lines) -> bool:
    if core.IS_BUILT:
        return core.same_bytes(lines.golden.bits, lines.target.bits)
    return lines.golden.same_bits(lines.target)


def summed(lines: Lines, survey: Survey, closeness: Closeness) -> Sums:
    """Sum over all blocks; where float64 cannot hold the squares, again in a larger unit."""
    sums = Sums(lines, survey, closeness).added()
    if not sums.sound:
        sums = Sums(lines, survey, closeness, careful=True).added()
    if not (sums.credible and survey.unit == 1.0):
        unit = unit_for(max(survey.magnitude, sums.target.magnitude))
        sums = Sums(lines, survey, closeness, unit, careful=True).added()
    return sums


@dataclass(slots=True)
class Sums:
    """What is added up. d is target - golden; a and b are golden and target less `shift`.

    Products are in `unit` squared; a row is a run of trailing elements (see `Lines.row`).
    """

    lines: Lines
    survey: Survey  # of golden
    closeness: Closeness
    unit: float = 1.0
    careful: bool = False  # in float64, with what is not finite set aside
    shift: float = 0.0  # golden's mean where it dominates; 0 elsewhere
    target: Survey = field(default_factory=Survey)
    num_finite: int = 0  # numbers that are finite on both sides
    aa: float = 0.0
    bb: float = 0.0
    ab: float = 0.0
    dd: float = 0.0
    da: float = 0.0
    a: float = 0.0
    d: float = 0.0
    abs_d: float = 0.0
    max_d: float = -1.0
    worst: int = 0
    rel: float = 0.0
    max_rel: float = 0.0
    rel_plain: float = 0.0
    max_rel_plain: float = 0.0
    max_row: float = 0.0
    num_rows: int = 0
    row_gain: float = 0.0  # the gains of rows, added up
    row_gain_squared: float = 0.0
    max_ulp: float = math.nan
    mismatched: int = 0
    nonfinite_agree: bool = True

    def __post_init__(self) -> None:
        self.target = Survey(self.unit)
        survey = self.survey
        if abs(survey.mean) > _DOMINATES * survey.rms:
            self.shift = survey.mean
        whole, safe = self.lines.whole_numbers, is_safe(survey.magnitude)
        self.careful |= bool(survey.num_odd or self.shift or whole or not safe)

    @property
    def sound(self) -> bool:
        """Whether the pair needed no more care than was taken."""
        return self.careful or (
            not self.target.num_odd
            and is_safe(self.target.magnitude)
            and not 0 < self.max_d < _TINY
        )

    @property
    def credible(self) -> bool:
        """Whether no sum overflowed or vanished."""
        return self.target.credible and math.isfinite(self.dd) and math.isfinite(self.aa)

    def added(self) -> Sums:
        """These sums with every block taken in, or with no more than shows that they need care."""
        records = self._records()
        self.target = Survey.of(self.unit, [record[:7] for record in records])
        if not self.sound:
            return self
        for record in records:
            self._add(*record[7:])
        if not self.careful:
            self.a, self.bb = self.survey.sum, self.target.squares
            self.d = self.target.sum - self.survey.sum
        return self

    def _records(self) -> Sequence[Sequence[float]]:
        """What each block of the pair adds: a `Glance` of the target, and what `_add` takes."""
        lines, closeness, rms = self.lines, self.closeness, self.survey.rms
        if core.IS_BUILT:
            numbers = self.unit, self.shift, rms, closeness.rtol, closeness.atol
            return core.summed(lines, self.careful, *numbers)
        units = Units(lines, closeness, rms, self.careful, self.shift, self.unit)
        with np.errstate(all="ignore"):
            return [units.record(span, row) for span, row in lines.spans()]

    def _add(
        self, num_finite: float, aa: float, bb: float, ab: float, dd: float, da: float,
        a: float, d: float, abs_d: float, max_d: float, worst: float, rel: float,
        max_rel: float, plain: float, max_plain: float, max_row: float, num_rows: float,
        gain: float, gain_squared: float, max_ulp: float, mismatched: float, apart: float,
    ) -> None:  # fmt: skip
        """Add what one block adds."""
        self.num_finite += int(num_finite)
        self.aa, self.bb, self.ab = self.aa + aa, self.bb + bb, self.ab + ab
        self.dd, self.da = self.dd + dd, self.da + da
        self.a, self.d = self.a + a, self.d + d
        self.abs_d += abs_d
        if max_d > self.max_d:
            self.max_d, self.worst = max_d, int(worst)
        self.rel, self.max_rel = self.rel + rel, max(self.max_rel, max_rel)
        self.rel_plain += plain
        self.max_rel_plain = max(self.max_rel_plain, max_plain)
        self.max_row, self.num_rows = max(self.max_row, max_row), self.num_rows + int(num_rows)
        self.row_gain += gain
        self.row_gain_squared += gain_squared
        if not self.max_ulp >= max_ulp:
            self.max_ulp = max_ulp if max_ulp == max_ulp else self.max_ulp
        self.mismatched += int(mismatched + apart)
        self.nonfinite_agree &= not apart

    def metrics(self, shape: tuple[int, ...]) -> Metrics:
        """What the sums say of two sides of `shape`."""
        lines, count = self.lines, self.lines.golden.numel // self.lines.parts
        n = self.num_finite or math.nan  # without a finite pair there are no errors: NaN
        known = bool(self.survey.rms)  # a golden of zeros has no unit for a relative error
        unknown = math.inf if self.dd else 0.0
        aa, bb, ab, da = self._products()
        cosine, cosine_distance = (
            _direction(aa, bb, ab, da, self.dd) if self.num_finite else (math.nan, math.nan)
        )
        rel_l2 = math.sqrt(self.dd / aa) if aa else unknown
        return Metrics(
            count=count,
            equal=False,
            num_finite=self.num_finite // lines.parts,
            cosine=cosine,
            cosine_distance=cosine_distance,
            pcc=self._pcc(),
            rel_l2=rel_l2 if self.num_finite else math.nan,
            gain=da / aa if aa else math.nan,
            gain_score=self._gain_score(),
            max_row_err=self.max_row if known else unknown,
            rmse=self.unit * math.sqrt(self.dd / n),
            max_abs_diff=self.max_d if self.num_finite else math.nan,
            mean_abs_diff=self.abs_d / n,
            worst=tuple(int(i) for i in np.unravel_index(self.worst // lines.parts, shape)),
            max_rel_err=self.max_rel if known else unknown,
            mean_rel_err=self.rel / n if known else unknown,
            mean_rel_err_plain=self.rel_plain / n,
            max_rel_err_plain=self.max_rel_plain,
            max_ulp=self.max_ulp,
            mismatched=min(self.mismatched, count),
            nonfinite_agree=self.nonfinite_agree,
            golden=self.survey.extent(),
            target=self.target.extent(),
        )

    def _products(self) -> tuple[float, float, float, float]:
        """aa, bb, ab and da with the shift put back."""
        n, s = self.num_finite, self.shift / self.unit
        a, b = self.a, self.a + self.d
        return (
            self.aa + s * (2 * a + n * s),
            self.bb + s * (2 * b + n * s),
            self.ab + s * (a + b + n * s),
            self.da + s * self.d,
        )

    def _gain_score(self) -> float:
        """The mean gain of the rows over its standard error; NaN for too few rows to tell."""
        n = self.num_rows
        if n < _FEW_ROWS:
            return math.nan
        mean = self.row_gain / n
        variance = max(0.0, self.row_gain_squared / n - mean * mean)
        return mean / math.sqrt(variance / (n - 1)) if variance else math.copysign(math.inf, mean)

    def _pcc(self) -> float:
        """The cosine of both sides less their means; NaN where a side is constant."""
        sides = self.survey, self.target
        if not self.num_finite or any(side.min == side.max for side in sides):
            return math.nan
        n, a, b = self.num_finite, self.a, self.a + self.d
        centred = (self.aa - a * a / n, self.bb - b * b / n, self.ab - a * b / n)
        return _direction(*centred, self.da - a * self.d / n, self.dd - self.d * self.d / n)[0]


def _direction(aa: float, bb: float, ab: float, da: float, dd: float) -> tuple[float, float]:
    """Cosine and 1 - cosine from inner products; the latter from d where the sides are near.

    1 - ab / sqrt(aa bb) loses all digits for sides that are nearly equal; the area that they
    span, aa dd - da**2, does not.
    """
    if aa <= 0 or bb <= 0:
        return (math.nan, math.nan) if dd else (1.0, 0.0)  # two zeros are the same direction
    cosine = ab / math.sqrt(aa) / math.sqrt(bb)
    if dd > NEAR * aa:
        cosine = min(1.0, max(-1.0, cosine))
        return cosine, 1 - cosine
    distance = max(0.0, dd / bb - da / aa * (da / bb)) / (1 + cosine)
    return 1 - distance, distance
