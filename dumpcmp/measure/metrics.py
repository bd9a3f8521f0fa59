"""Measures how far a target value lies from golden: blocks, float64 sums, and no opinion.

Golden is surveyed first, because its rms and mean are the units of the relative errors and of
the PCC; then one pass over blocks of both sides that stay in the cache gives everything else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dumpcmp.measure.blocks import (
    FLOAT64,
    Lines,
    Numbers,
    Scratch,
    Survey,
    is_safe,
    read,
    row_dots,
    row_sums,
    scratch_of,
    spacings_between,
    sum_of,
    surveyed,
    ulps_between,
    unit_for,
)
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.row import USUAL, Closeness, Metrics
from dumpcmp.nouns.value import Kind, Value

_DOMINATES = 0.95  # golden's mean is taken off before squaring where it is this much of the rms
_TINY = 1e-15  # errors below it are squared in float64
_NEAR = 0.25  # squared relative error up to which 1 - cosine is taken from the differences
_FEW_ROWS = 16  # rows below which their gains have no standard error to speak of

Mask = NDArray[np.bool_]
Places = NDArray[np.intp] | slice


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
    lines = Lines.of(golden, target)
    survey = surveyed(lines.golden, lines.width)
    if golden.same_bits(target):
        return Metrics.of_equals(golden.numel, survey.num_finite // lines.parts, survey.extent())
    return summed(lines, survey, closeness).metrics(golden.shape)


def summed(lines: Lines, survey: Survey, closeness: Closeness) -> Sums:
    """Sum over all blocks; where float64 cannot hold the squares, again in a larger unit."""
    with np.errstate(all="ignore"):
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
        """Whether the target needed no more care than was taken."""
        return self.careful or (not self.target.num_odd and is_safe(self.target.magnitude))

    @property
    def credible(self) -> bool:
        """Whether no sum overflowed or vanished."""
        return self.target.credible and math.isfinite(self.dd) and math.isfinite(self.aa)

    def added(self) -> Sums:
        """These sums with every block taken in, or with those up to the first that needs care."""
        scratch = scratch_of(self.lines.width)
        for span, row in self.lines.spans():
            self._add(span, row, scratch)
            if not self.sound:
                return self
        if not self.careful:
            self.a, self.bb = self.survey.sum, self.target.squares
            self.d = self.target.sum - self.survey.sum
        return self

    def _add(self, span: slice, row: int, scratch: Scratch) -> None:
        a = read(self.lines.golden, span, self.lines.width)
        b = read(self.lines.target, span, self.lines.width)
        self.target.add(b)
        if self.careful:
            self._add_carefully(span, a.astype(np.float64), b.astype(np.float64), row)
        elif self.sound:
            d = np.subtract(b, a, out=scratch.difference[: a.size])
            suspects = self._add_errors(span.start, a, d, scratch)
            self._add_products(a, b, d, row, 0.0)
            self.num_finite += a.size
            self._add_ulps(span, a, d, suspects)

    def _add_carefully(self, span: slice, a: Numbers, b: Numbers, row: int) -> None:
        """In float64, with the elements that are not finite set aside."""
        odd = self._places_not_finite(a, b)
        a[odd], b[odd] = 0, 0
        d = self._difference(span, a, b)
        self._add_errors(span.start, a, d, scratch_of(FLOAT64))
        self._add_ulps(span, a, d, np.flatnonzero(~odd))
        if self.unit != 1.0:
            a, b = a / self.unit, b / self.unit
            d = b - a
        shift = self.shift / self.unit
        if shift:
            a, b = np.where(odd, 0, a - shift), np.where(odd, 0, b - shift)
        self._add_products(a, b, d, row, shift)
        self.num_finite += a.size - int(np.count_nonzero(odd))

    def _places_not_finite(self, a: Numbers, b: Numbers) -> Mask:
        """Where either side is NaN or infinite, after counting where only one of them is."""
        odd = ~(np.isfinite(a) & np.isfinite(b))
        a, b = a[odd], b[odd]
        apart = int(np.count_nonzero(~((a == b) | (np.isnan(a) & np.isnan(b)))))
        self.mismatched += apart
        self.nonfinite_agree &= not apart
        return odd

    def _difference(self, span: slice, a: Numbers, b: Numbers) -> Numbers:
        if not self.lines.whole_numbers:
            return b - a
        left, right = self.lines.golden.bits[span], self.lines.target.bits[span]
        wide = np.uint64 if left.dtype == np.uint64 else np.int64
        low, high = np.minimum(left, right, dtype=wide), np.maximum(left, right, dtype=wide)
        apart = high.view(np.uint64) - low.view(np.uint64)  # exact, also beyond 2**53
        signed: Numbers = np.where(low == right, -1.0, 1.0) * apart.astype(np.float64)
        return signed

    def _add_errors(self, start: int, a: Numbers, d: Numbers, scratch: Scratch) -> Places:
        """Take in the absolute and relative errors; gives the places that may be most ULPs off."""
        n, kind = a.size, a.dtype.type
        error = np.abs(d, out=scratch.error[:n])
        most = float(error.max())
        if most > self.max_d:
            self.max_d, self.worst = most, start + int(error.argmax())
        if not most:
            return slice(0, 1)
        self.abs_d += sum_of(error)
        size, spare = np.abs(a, out=scratch.magnitude[:n]), scratch.spare[:n]
        plain = float(np.fmax.reduce(np.divide(error, size, out=spare)))
        suspects = self._suspects(spare, plain)
        self.max_rel_plain = max(self.max_rel_plain, plain)
        mean = sum_of(spare)
        self.rel_plain += mean if math.isfinite(mean) else sum_of(spare[size > 0])
        if self.lines.whole_numbers:
            self.mismatched += int(np.count_nonzero(error))
        elif most > self.closeness.atol:
            np.multiply(size, kind(self.closeness.rtol), out=spare)
            np.add(spare, kind(self.closeness.atol), out=spare)
            far = np.greater(error, spare, out=scratch.far[:n])
            self.mismatched += int(np.count_nonzero(far))
        if self.survey.rms:
            np.add(size, kind(self.survey.rms), out=size)
            relative = np.divide(error, size, out=spare)
            self.max_rel = max(self.max_rel, float(relative.max()))
            self.rel += sum_of(relative)
        return suspects

    def _suspects(self, relative: Numbers, most: float) -> Places:
        """Where the distance in ULPs may be largest, given the plain relative errors.

        Up to a relative error of a quarter it grows with it, within a factor of two; what lies
        beyond is all suspect, and so is everything beside golden zeros or subnormals.
        """
        golden = self.lines.golden
        if golden.dtype.name != "float32" or golden.dtype != self.lines.target.dtype:
            return slice(None)
        if most < min(0.49 * self.max_rel_plain, 0.25):
            return slice(0, 1)  # an earlier block has one that is farther off
        return np.flatnonzero(relative >= min(0.49 * most, 0.25)) if most < 2e7 else slice(None)

    def _add_products(self, a: Numbers, b: Numbers, d: Numbers, row: int, shift: float) -> None:
        if 0 < self.max_d < _TINY:
            d = d.astype(np.float64, copy=False)
        errors, norms, along = row_dots(d, d, row), row_dots(a, a, row), row_dots(a, d, row)
        dd, aa, da = float(errors.sum()), float(norms.sum()), float(along.sum())
        self.dd, self.aa, self.da = self.dd + dd, self.aa + aa, self.da + da
        self.ab += aa + da if dd < _NEAR * aa else float(np.dot(a, b))
        self.num_rows += norms.size
        if self.careful:
            self.a, self.d = self.a + sum_of(a), self.d + sum_of(d)
            self.bb += float(np.dot(b, b))
        if dd and self.survey.rms:
            if shift:
                norms = np.maximum(norms + shift * (2 * row_sums(a, row) + row * shift), 0)
                along = along + shift * row_sums(d, row)
            gains = along / np.where(norms > 0, norms, 1)
            self.row_gain += float(gains.sum())
            self.row_gain_squared += float(gains @ gains)
            level = np.sqrt(norms) + self.survey.rms / self.unit * math.sqrt(row)
            self.max_row = max(self.max_row, float((np.sqrt(errors) / level).max()))

    def _add_ulps(self, span: slice, a: Numbers, d: Numbers, where: Places) -> None:
        golden, target = self.lines.golden, self.lines.target
        if Kind.FLOAT not in (golden.dtype.kind, target.dtype.kind):
            return  # nothing rounds
        if golden.dtype == target.dtype:
            apart = ulps_between(golden.bits[span][where], target.bits[span][where])
        else:
            coarser = max(golden.dtype, target.dtype, key=lambda dtype: dtype.eps)
            apart = spacings_between(a[where], np.abs(d[where]), coarser)
        self.max_ulp = float(np.fmax(self.max_ulp, apart))

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
    if dd > _NEAR * aa:
        cosine = min(1.0, max(-1.0, cosine))
        return cosine, 1 - cosine
    distance = max(0.0, dd / bb - da / aa * (da / bb)) / (1 + cosine)
    return 1 - distance, distance
