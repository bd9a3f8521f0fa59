"""How far single elements are off, where a norm shows no more than the largest of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.value import Kind, Value

_SAMPLED = 1 << 18  # elements by which a value is known, in pieces of it
_PIECES = 64
_BLOCK = 1 << 20  # elements that are looked at together
_SMALL = 0.1  # of the elements are smaller than what small ones are
_HIDES = 64.0  # times those: the rms of a value that its largest elements make; of noise it is 8
_FEWEST = 8  # elements that differ, with which anything is told of the usual one,
_PART = 1 / 16  # and of all: single ones may be what is left after cancellation


def usual_error(golden: Value, target: Value, rms: float) -> float:
    """What half of the elements that differ are off, of the larger of both.

    It is 0 where few of them differ, and where the `rms` of golden, all of it, is not that of a few
    large ones, which may stand anywhere.
    """
    ours, apart = _apart(golden, target)
    differ = apart != 0
    if np.count_nonzero(differ) < max(_FEWEST, _PART * np.count_nonzero(ours)):
        return 0.0
    if rms <= _HIDES * _small(np.abs(ours)):
        return 0.0
    larger = np.maximum(np.abs(ours[differ]), np.abs(ours[differ] + apart[differ]))
    return float(np.median(np.abs(apart[differ]) / larger))


def farthest(golden: Value, target: Value) -> float:
    """How far off the worst element is, of itself and of what small ones are."""
    ours, theirs = golden.bits.reshape(-1), target.bits.reshape(-1)
    small = _small(np.abs(_wide(golden, _sample(ours))))
    blocks = (slice(at, at + _BLOCK) for at in range(0, ours.size, _BLOCK))
    return max((_worst(golden, target, ours[b], theirs[b], small) for b in blocks), default=0.0)


def _worst(
    golden: Value, target: Value, ours: NDArray[Any], theirs: NDArray[Any], small: float
) -> float:
    numbers, apart = _finite(_wide(golden, ours), _wide(target, theirs))
    sizes = np.abs(numbers) + small
    return float((np.abs(apart[sizes > 0]) / sizes[sizes > 0]).max(initial=0.0))


def _small(sizes: NDArray[Any]) -> float:
    """What small elements are that are not zero."""
    told = sizes[(sizes > 0) & np.isfinite(sizes)]
    return float(np.quantile(told, _SMALL)) if told.size else 0.0


def _apart(golden: Value, target: Value) -> tuple[NDArray[Any], NDArray[Any]]:
    """Golden's elements and how far the target's are off, where both are finite: some of many."""
    ours, theirs = (_wide(one, _sample(one.bits.reshape(-1))) for one in (golden, target))
    if ours.size != theirs.size:  # a real one beside a complex one: its other part is zero
        ours, theirs = (_with_zeros(each, max(ours.size, theirs.size)) for each in (ours, theirs))
    return _finite(ours, theirs)


def _sample(line: NDArray[Any]) -> NDArray[Any]:
    """All elements, or the first ones of pieces of many: the rest is not even read."""
    if line.size <= _SAMPLED:
        return line
    return line[: line.size // _PIECES * _PIECES].reshape(_PIECES, -1)[:, : _SAMPLED // _PIECES]


def _wide(value: Value, bits: NDArray[Any]) -> NDArray[np.float64]:
    """Some of the bits of a value as numbers; of complex ones both parts."""
    numbers = Value(value.dtype, bits).numbers().reshape(-1)
    if value.dtype.kind is Kind.COMPLEX:
        return numbers.astype(np.complex128).view(np.float64)
    return numbers.astype(np.float64)


def _with_zeros(parts: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    return parts if parts.size == count else parts.astype(np.complex128).view(np.float64)


def _finite(
    ours: NDArray[np.float64], theirs: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    told = np.isfinite(ours) & np.isfinite(theirs)
    return ours[told], theirs[told] - ours[told]
