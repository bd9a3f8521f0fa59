"""Measures how far a target value lies from golden: blocks, float64 sums, and no opinion.

Golden is surveyed first, because its rms and mean are the units of the relative errors and of
the PCC; then one pass over blocks of both sides that stay in the cache gives everything else.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dumpcmp.measure.blocks import Survey, surveyed
from dumpcmp.measure.sums import Lines, Sums, laid_out
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.row import USUAL, Closeness, Metrics
from dumpcmp.nouns.value import Value

_BYTES = 1 << 20  # bytes that are held against each other at once


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
    lines = laid_out(golden, target)
    survey = surveyed(lines.golden, lines.width)
    if same_bits(golden, target):
        return _of_equals(golden.numel, survey)
    return _of_sums(golden.shape, lines, lines.summed(survey, closeness))


def same_bits(golden: Value, target: Value) -> bool:
    """Whether both sides are the same to the bit, dtype included. Stops where they are not."""
    if golden.dtype != target.dtype:
        return False
    if golden.bits is target.bits:
        return True
    a, b = (np.ascontiguousarray(v.bits).reshape(-1).view(np.uint8) for v in (golden, target))
    blocks = (slice(i, i + _BYTES) for i in range(0, a.size, _BYTES))
    return all(bool((_words(a[block]) == _words(b[block])).all()) for block in blocks)


def _words(octets: NDArray[np.uint8]) -> NDArray[np.unsignedinteger]:
    return octets.view(np.uint64) if octets.size % 8 == 0 else octets


def _of_equals(count: int, survey: Survey) -> Metrics:
    direction = math.nan if survey.magnitude == 0 else 1.0
    return Metrics(
        count=count,
        equal=True,
        num_finite=survey.num_finite,
        cosine=direction,
        cosine_distance=1 - direction,
        pcc=1.0 if survey.min < survey.max else math.nan,
        rel_l2=0.0,
        gain=0.0,
        gain_score=0.0,
        max_row_err=0.0,
        rmse=0.0,
        max_abs_diff=0.0,
        mean_abs_diff=0.0,
        max_rel_err=0.0,
        mean_rel_err=0.0,
        max_rel_err_plain=0.0,
        max_ulp=0.0,
        golden=survey.extent(),
        target=survey.extent(),
    )


def _of_sums(shape: tuple[int, ...], lines: Lines, sums: Sums) -> Metrics:
    count = lines.golden.numel // lines.parts
    n = sums.num_finite or math.nan  # without a finite pair there are no errors: NaN
    known = bool(sums.survey.rms)  # a golden of zeros has no unit for a relative error
    cosine, cosine_distance = sums.cosine()
    place = np.unravel_index(sums.worst // lines.parts, shape)
    return Metrics(
        count=count,
        equal=False,
        num_finite=sums.num_finite // lines.parts,
        cosine=cosine,
        cosine_distance=cosine_distance,
        pcc=sums.pcc(),
        rel_l2=sums.rel_l2(),
        gain=sums.gain(),
        gain_score=sums.gain_score(),
        max_row_err=sums.max_row if known else _unknown(sums.dd),
        rmse=sums.unit * math.sqrt(sums.dd / n),
        max_abs_diff=sums.max_d if sums.num_finite else math.nan,
        mean_abs_diff=sums.abs_d / n,
        worst=tuple(int(i) for i in place),
        max_rel_err=sums.max_rel if known else _unknown(sums.dd),
        mean_rel_err=sums.rel / n if known else _unknown(sums.dd),
        max_rel_err_plain=sums.max_rel_plain,
        max_ulp=sums.max_ulp,
        mismatched=min(sums.mismatched, count),
        nonfinite_agree=sums.nonfinite_agree,
        golden=sums.survey.extent(),
        target=sums.target.extent(),
    )


def _unknown(error: float) -> float:
    return math.inf if error else 0.0
