"""What one block of both sides adds to the sums of a pair, by numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dumpcmp.measure.blocks import Lines, Numbers, read, spacings_between, ulps_between
from dumpcmp.measure.lanes import first_place, laid, row_sums, total
from dumpcmp.measure.survey import Glance, glance_at
from dumpcmp.nouns.row import Closeness
from dumpcmp.nouns.value import Kind

_NOTHING = (0.0,) * 22
NEAR = 0.25  # squared relative error up to which products are taken from the differences

Places = NDArray[np.bool_] | slice


class Errors(NamedTuple):
    """The absolute and relative errors of one block."""

    abs_d: float = 0.0
    max_d: float = 0.0
    worst: int = 0
    rel: float = 0.0
    max_rel: float = 0.0
    plain: float = 0.0
    max_plain: float = 0.0
    far: int = 0  # outside the closeness that was asked for


class Products(NamedTuple):
    """The inner products of one block, and what its rows tell."""

    aa: float
    bb: float
    ab: float
    dd: float
    da: float
    a: float
    d: float
    max_row: float = 0.0
    num_rows: int = 0
    gain: float = 0.0
    gain_squared: float = 0.0


@dataclass(frozen=True, slots=True)
class Units:
    """What a pass over both sides is told. d is target - golden; a and b are less `shift`."""

    lines: Lines
    closeness: Closeness
    rms: float  # of golden
    careful: bool  # in float64, with what is not finite set aside
    shift: float = 0.0  # golden's mean where it dominates
    unit: float = 1.0  # products are in its square

    def record(self, span: slice, row: int) -> list[float]:
        """What the block `span` adds; the order is that of the C core's record."""
        a = read(self.lines.golden, span, self.lines.width)
        b = read(self.lines.target, span, self.lines.width)
        side = glance_at(b, row, self.unit)
        block = Passage(self, span, row)
        if self.careful:
            return block.careful(a.astype(np.float64), b.astype(np.float64), side)
        if not side.is_plain:
            return [*side, *_NOTHING]  # whoever adds it up sees why, and takes more care
        return block.plain(a, b, side)


@dataclass(frozen=True, slots=True)
class Passage:
    """One block of both sides."""

    units: Units
    span: slice
    row: int

    def plain(self, a: Numbers, b: Numbers, side: Glance) -> list[float]:
        """All in the type of `a` and `b`, which are finite."""
        x, y = laid(a, self.row), laid(b, self.row)
        d = y - x
        found = self._errors(x, d)
        ulps = self._ulps(a, b, slice(None))
        return _recorded(side, a.size, self._products(x, y, d), found, ulps, found.far, 0)

    def careful(self, a: Numbers, b: Numbers, side: Glance) -> list[float]:
        """In float64, with the elements that are not finite set aside."""
        units = self.units
        odd = ~(np.isfinite(a) & np.isfinite(b))
        apart = int(np.count_nonzero(~((a == b) | (np.isnan(a) & np.isnan(b)))[odd]))
        a[odd], b[odd] = 0, 0
        x, y = laid(a, self.row), laid(b, self.row)
        d: Numbers = y - x
        if units.lines.whole_numbers:
            d = laid(self._whole_difference(), self.row)
        found = self._errors(x, d)
        ulps = self._ulps(a, b, ~odd)
        far = int(np.count_nonzero(d)) if units.lines.whole_numbers else found.far
        if units.unit != 1.0:
            x, y = x / units.unit, y / units.unit
            d = y - x
        if shift := units.shift / units.unit:
            kept: Numbers = laid(np.where(odd, 0.0, shift), self.row)
            x, y = x - kept, y - kept
        num_finite = a.size - int(np.count_nonzero(odd))
        return _recorded(side, num_finite, self._products(x, y, d), found, ulps, far, apart)

    def _whole_difference(self) -> Numbers:
        lines = self.units.lines
        left, right = lines.golden.bits[self.span], lines.target.bits[self.span]
        wide = np.uint64 if left.dtype == np.uint64 else np.int64
        low, high = np.minimum(left, right, dtype=wide), np.maximum(left, right, dtype=wide)
        apart = high.view(np.uint64) - low.view(np.uint64)  # exact, also beyond 2**53
        signed: Numbers = np.where(low == right, -1.0, 1.0) * apart.astype(np.float64)
        return signed

    def _errors(self, a: Numbers, d: Numbers) -> Errors:
        error, size, kind = np.abs(d), np.abs(a), a.dtype.type
        most, closeness = float(error.max()), self.units.closeness
        spare = error / size
        most_plain = float(np.fmax.reduce(spare, axis=None)) if most else 0.0
        if not size.all():
            spare[size == 0] = 0
        found = Errors(
            abs_d=total(row_sums(error)),
            max_d=most,
            worst=self.span.start + first_place(error, most, self.row),
            plain=total(row_sums(spare)),
            max_plain=max(0.0, most_plain),
        )
        np.multiply(size, kind(closeness.rtol), out=spare)
        np.add(spare, kind(closeness.atol), out=spare)
        found = found._replace(far=int(np.count_nonzero(error > spare)))
        if not self.units.rms:
            return found
        np.add(size, kind(self.units.rms), out=size)
        np.divide(error, size, out=spare)
        most_relative = float(np.fmax.reduce(spare, axis=None))
        return found._replace(rel=total(row_sums(spare)), max_rel=max(0.0, most_relative))

    def _products(self, a: Numbers, b: Numbers, d: Numbers) -> Products:
        norms = row_sums(spare := a * a)
        errors = row_sums(np.multiply(d, d, out=spare))
        along = row_sums(np.multiply(a, d, out=spare))
        aa, dd, da = total(norms), total(errors), total(along)
        ab = aa + da if dd < NEAR * aa else total(row_sums(a * b))
        found = Products(aa, 0.0, ab, dd, da, 0.0, 0.0, num_rows=norms.size)
        if self.units.careful:
            sums, sums_of_d = row_sums(a), row_sums(d)
            found = found._replace(bb=total(row_sums(b * b)), a=total(sums), d=total(sums_of_d))
            if shift := self.units.shift / self.units.unit:
                norms = norms + shift * (2 * sums + self.row * shift)
                norms, along = np.where(norms > 0, norms, 0), along + shift * sums_of_d
        if not self.units.rms:
            return found
        gains = along / np.where(norms > 0, norms, 1)
        level = np.sqrt(norms) + self.units.rms / self.units.unit * math.sqrt(self.row)
        return found._replace(
            gain=total(gains),
            gain_squared=total(gains * gains),
            max_row=max(0.0, float(np.fmax.reduce(np.sqrt(errors) / level))),
        )

    def _ulps(self, a: Numbers, b: Numbers, where: Places) -> float:
        golden, target = self.units.lines.golden, self.units.lines.target
        if Kind.FLOAT not in (golden.dtype.kind, target.dtype.kind):
            return math.nan  # nothing rounds
        if golden.dtype == target.dtype:
            ours, theirs = golden.bits[self.span], target.bits[self.span]
            return ulps_between(ours[where], theirs[where])
        coarser = max(golden.dtype, target.dtype, key=lambda dtype: dtype.eps)
        a, b = a[where], b[where]
        return spacings_between(a, np.abs(b - a), coarser)


def _recorded(
    side: Glance,
    num_finite: int,
    products: Products,
    errors: Errors,
    ulps: float,
    far: int,
    apart: int,
) -> list[float]:
    one, two = products, errors
    return [
        *side, num_finite, one.aa, one.bb, one.ab, one.dd, one.da, one.a, one.d,
        two.abs_d, two.max_d, two.worst, two.rel, two.max_rel, two.plain, two.max_plain,
        one.max_row, one.num_rows, one.gain, one.gain_squared, ulps, far, apart,
    ]  # fmt: skip
