"""Counts the representable numbers between two values: distance in units in the last place."""

import math

import numpy as np
from numpy.typing import NDArray

from dumpcmp.measure.blocks import Numbers
from dumpcmp.nouns.dtypes import Dtype, Kind

_LEAST_EXPONENT = {"float16": -14, "float8_e4m3fn": -6, "float8_e5m2": -14, "float64": -1022}


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
    least = _LEAST_EXPONENT.get(dtype.name, -126)
    spacing = np.ldexp(dtype.eps, np.maximum(exponent - 1, least))
    return float((error / spacing).max())


def coarser(golden: Dtype, target: Dtype) -> Dtype:
    """The dtype that rounds more; a dtype that does not round gives way to one that does."""
    return max(golden, target, key=lambda dtype: dtype.eps)


def counts_in_ulps(golden: Dtype, target: Dtype) -> bool:
    """Whether a distance in units in the last place exists for this pair of dtypes."""
    return bool({golden.kind, target.kind} & {Kind.FLOAT, Kind.COMPLEX})
