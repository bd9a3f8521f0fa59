"""Counts the representable numbers between two values: distance in units in the last place."""

import math

import numpy as np
from numpy.typing import NDArray

from dumpcmp.measure.blocks import Numbers
from dumpcmp.nouns.dtypes import Dtype


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
