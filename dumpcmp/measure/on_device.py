"""Measures on a GPU: the same sums as `measure` takes, in float64, where the elements go there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dumpcmp.measure.blocks import Lines, spans
from dumpcmp.measure.metrics import Sums, measure
from dumpcmp.measure.survey import Survey
from dumpcmp.nouns.row import USUAL, Closeness, Metrics
from dumpcmp.nouns.value import Dtype, Kind, Value, to_torch

_AT_ONCE = 1 << 24  # elements of either side


def measure_on(device: str, golden: Value, target: Value, closeness: Closeness = USUAL) -> Metrics:
    """`measure` on `device`; of what is no plain float, or too large to be squared, on the CPU."""
    floats = {golden.dtype.kind, target.dtype.kind} == {Kind.FLOAT}
    if golden.shape != target.shape or not floats or not golden.numel:
        return measure(golden, target, closeness)
    lines = Lines.of(golden, target)
    survey = Survey()
    for span, _ in spans(lines.golden.numel, lines.row, _AT_ONCE):
        _look(survey, _wide(lines.golden, span, device))
    if golden.same_bits(target):
        return Metrics.of_equals(golden.numel, survey.num_finite, survey.extent())
    sums = DeviceSums(lines, survey, closeness, careful=True, device=device).added()
    if not (survey.credible and sums.credible):
        return measure(golden, target, closeness)
    return sums.metrics(golden.shape)


def _there(line: Value, span: slice, device: str) -> Tensor:
    return to_torch(Value(line.dtype, line.bits[span])).to(device)


def _wide(line: Value, span: slice, device: str) -> Tensor:
    return _there(line, span, device).to(torch.float64)


def _look(survey: Survey, numbers: Tensor) -> None:
    """Take the `numbers` of one block into `survey`."""
    finite = torch.isfinite(numbers)
    num_finite = int(finite.sum())
    survey.num_finite += num_finite
    survey.num_nan += (num_nan := int(torch.isnan(numbers).sum()))
    survey.num_inf += numbers.numel() - num_finite - num_nan
    if num_finite:
        low, high = torch.where(finite, numbers, math.inf), torch.where(finite, numbers, -math.inf)
        kept = torch.where(finite, numbers, 0.0)
        found = torch.stack((low.min(), high.max(), kept.sum(), kept @ kept)).tolist()
        survey.min, survey.max = min(survey.min, found[0]), max(survey.max, found[1])
        survey.sum, survey.squares = survey.sum + found[2], survey.squares + found[3]


@dataclass(slots=True)
class DeviceSums(Sums):
    """Sums whose blocks are added up on a device."""

    device: str = "cpu"

    def added(self) -> DeviceSums:
        """These sums with every block taken in."""
        for span, row in spans(self.lines.golden.numel, self.lines.row, _AT_ONCE):
            self._take(span, row)
        return self

    def _take(self, span: slice, row: int) -> None:
        ours, theirs = (_there(line, span, self.device) for line in (
            self.lines.golden, self.lines.target))  # fmt: skip
        a, b = ours.to(torch.float64), theirs.to(torch.float64)
        _look(self.target, b)
        finite = torch.isfinite(a) & torch.isfinite(b)
        odd = ~finite
        same = (a == b) | (torch.isnan(a) & torch.isnan(b))
        apart = int((odd & ~same).sum())
        self.mismatched += apart
        self.nonfinite_agree &= not apart
        a, b = torch.where(finite, a, 0.0), torch.where(finite, b, 0.0)
        d = b - a
        self._take_errors(span.start, a, d)
        self._take_ulps(ours[finite], theirs[finite], a[finite], d[finite])
        if self.shift:
            a, b = (
                torch.where(finite, a - self.shift, 0.0),
                torch.where(finite, b - self.shift, 0.0),
            )
        self._take_products(a, b, d, row)
        self.num_finite += int(finite.sum())

    def _take_errors(self, start: int, a: Tensor, d: Tensor) -> None:
        error, size = d.abs(), a.abs()
        most = float(error.max())
        if most > self.max_d:
            self.max_d, self.worst = most, start + int(error.argmax())
        if not most:
            return
        plain = torch.where(size > 0, error / size, 0.0)
        at_zero = bool(((size == 0) & (error > 0)).any())
        far = error > self.closeness.atol + self.closeness.rtol * size
        found = torch.stack((error.sum(), plain.sum(), plain.max(), far.sum().double())).tolist()
        self.abs_d += found[0]
        self.rel_plain += found[1]
        self.max_rel_plain = math.inf if at_zero else max(self.max_rel_plain, found[2])
        self.mismatched += int(found[3])
        if self.survey.rms:
            relative = error / (size + self.survey.rms)
            self.max_rel = max(self.max_rel, float(relative.max()))
            self.rel += float(relative.sum())

    def _take_products(self, a: Tensor, b: Tensor, d: Tensor, row: int) -> None:
        rows = [each.reshape(-1, row) for each in (a, b, d)]
        norms, errors, along = ((rows[i] * rows[j]).sum(1) for i, j in ((0, 0), (2, 2), (0, 2)))
        total = torch.stack(
            (norms.sum(), errors.sum(), along.sum(), a @ b, b @ b, a.sum(), d.sum())
        )
        aa, dd, da, ab, bb, sum_a, sum_d = total.tolist()
        self.aa, self.dd, self.da = self.aa + aa, self.dd + dd, self.da + da
        self.ab, self.bb = self.ab + ab, self.bb + bb
        self.a, self.d = self.a + sum_a, self.d + sum_d
        self.num_rows += norms.numel()
        if not (dd and self.survey.rms):
            return
        if self.shift:
            sums = rows[0].sum(1)
            norms = (norms + self.shift * (2 * sums + row * self.shift)).clamp_min(0)
            along = along + self.shift * rows[2].sum(1)
        gains = along / torch.where(norms > 0, norms, 1.0)
        level = norms.sqrt() + self.survey.rms * math.sqrt(row)
        found = torch.stack((gains.sum(), gains @ gains, (errors.sqrt() / level).max())).tolist()
        self.row_gain += found[0]
        self.row_gain_squared += found[1]
        self.max_row = max(self.max_row, found[2])

    def _take_ulps(self, ours: Tensor, theirs: Tensor, a: Tensor, d: Tensor) -> None:
        if not a.numel():
            return
        golden, target = self.lines.golden.dtype, self.lines.target.dtype
        if golden == target:
            apart = _ulps_between(ours, theirs)
        else:
            apart = _spacings_between(a, d.abs(), max(golden, target, key=lambda each: each.eps))
        self.max_ulp = apart if math.isnan(self.max_ulp) else max(self.max_ulp, apart)


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _ulps_between(golden: Tensor, target: Tensor) -> float:
    """The largest number of steps from one to the other: magnitudes, which add up across zero."""
    kind = _INTEGERS[golden.element_size()]
    a, b = golden.contiguous().view(kind), target.contiguous().view(kind)
    across = (a < 0) != (b < 0)
    if golden.element_size() == 8:
        near = torch.where(across, 0, a - b).abs().double()
    else:
        near = torch.where(across, 0, a.long() - b.long()).abs().double()
    top = torch.iinfo(kind).max
    over = torch.where(across, (a & top).double() + (b & top).double(), 0.0)
    return float(torch.maximum(near, over).max())


def _spacings_between(golden: Tensor, error: Tensor, dtype: Dtype) -> float:
    _, exponent = torch.frexp(golden)
    least = torch.tensor(dtype.least_exponent, device=golden.device)
    spacing = torch.ldexp(torch.tensor(dtype.eps, dtype=torch.float64, device=golden.device),
                          torch.maximum(exponent - 1, least))  # fmt: skip
    return float((error / spacing).max())
