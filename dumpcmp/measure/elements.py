"""How far single elements are off, where a norm shows no more than the largest of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.value import Kind, Value

_LARGEST = 1 << 22  # elements that are looked at, spread over the value
_SMALL = 0.1  # of the elements are smaller than what small ones are
_HIDES = 64.0  # times those: the rms of a value that its largest elements make; of noise it is 8
_FEWEST = 8  # elements that differ, with which anything is told of the usual one,
_PART = 1 / 16  # and of all: single ones may be what is left after cancellation


def usual_error(golden: Value, target: Value) -> float:
    """What half of the elements that differ are off, of the larger of both.

    It is 0 where few of them differ, and where the norm of golden is not that of a few large ones.
    """
    ours, apart = _apart(golden, target)
    differ = apart != 0
    if np.count_nonzero(differ) < max(_FEWEST, _PART * np.count_nonzero(ours)):
        return 0.0
    largest = float(np.abs(ours).max()) or 1.0
    if largest * np.sqrt(np.mean(np.square(ours / largest))) <= _HIDES * _small(np.abs(ours)):
        return 0.0
    larger = np.maximum(np.abs(ours[differ]), np.abs(ours[differ] + apart[differ]))
    return float(np.median(np.abs(apart[differ]) / larger))


def farthest(golden: Value, target: Value) -> float:
    """How far off the worst element is, of itself and of what small ones are."""
    ours, apart = _apart(golden, target)
    sizes = np.abs(ours)
    sizes = sizes + _small(sizes)
    return float((np.abs(apart[sizes > 0]) / sizes[sizes > 0]).max(initial=0.0))


def _small(sizes: NDArray[Any]) -> float:
    """What small elements are that are not zero."""
    return float(np.quantile(sizes[sizes > 0], _SMALL)) if sizes.any() else 0.0


def _apart(golden: Value, target: Value) -> tuple[NDArray[Any], NDArray[Any]]:
    """Golden's elements and how far the target's are off, in float64, where both are finite.

    Of complex ones the parts are looked at; of a real one beside them the other part is zero.
    """
    step = -(-golden.numel // _LARGEST) or 1
    is_complex = Kind.COMPLEX in (golden.dtype.kind, target.dtype.kind)
    lines = (value.numbers().reshape(-1)[::step] for value in (golden, target))
    ours, theirs = (_parts(line) if is_complex else line.astype(np.float64) for line in lines)
    is_finite = np.isfinite(ours) & np.isfinite(theirs)
    return ours[is_finite], theirs[is_finite] - ours[is_finite]


def _parts(line: NDArray[Any]) -> NDArray[np.float64]:
    """The real and imaginary parts of some numbers."""
    return line.astype(np.complex128).view(np.float64)
