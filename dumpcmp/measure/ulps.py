"""Counts the representable numbers between two values: distance in units in the last place."""

import math

import numpy as np
from numpy.typing import NDArray

from dumpcmp.measure.blocks import Numbers
from dumpcmp.nouns.dtypes import Dtype, Kind
from dumpcmp.nouns.value import Value


def apart(golden: Value, target: Value, numbers: Numbers, error: Numbers) -> float:
    """The most units between finite `golden` and `target`; of the coarser dtype if they have two.

    `numbers` are golden's and `error` the size of the differences. NaN where nothing rounds.
    """
    if not golden.numel or Kind.FLOAT not in (golden.dtype.kind, target.dtype.kind):
        return math.nan
    if golden.dtype == target.dtype:
        return _steps(_integers(golden.bits), _integers(target.bits))
    return _spacings(numbers, error, max(golden.dtype, target.dtype, key=lambda dtype: dtype.eps))


def _integers(bits: NDArray[np.generic]) -> NDArray[np.int64]:
    return bits.view(f"i{bits.itemsize}")


def _steps(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
    """Bits of one sign are in the order of their floats; across zero the two magnitudes add up."""
    across = (a ^ b) < 0
    distance = a - b
    if not across.any():
        return float(np.abs(distance, out=distance).max())
    distance[across] = 0
    top = np.iinfo(a.dtype).max
    sums = (a[across] & top).astype(np.float64) + (b[across] & top)
    return max(float(np.abs(distance, out=distance).max()), float(sums.max()))


def _spacings(numbers: Numbers, error: Numbers, dtype: Dtype) -> float:
    """The largest `error`, in spacings of `dtype` around the numbers."""
    _, exponent = np.frexp(numbers)
    spacing = np.ldexp(dtype.eps, np.maximum(exponent - 1, dtype.least_exponent))
    return float((error / spacing).max())
