"""Add up partial terms and tell how far replicas are apart, in the values' own dtypes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.dtypes import Dtype, Kind, widen
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.layouts import ReduceOp
from dumpcmp.nouns.value import Value

_BLOCK = 1 << 17  # elements
_WIDE = {Kind.FLOAT: "<f8", Kind.COMPLEX: "<c16"}  # exact sums of short floats; ints stay ints
_FOLDS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,  # and divided by the number of terms afterwards
    ReduceOp.MAX: np.maximum,
    ReduceOp.MIN: np.minimum,
    ReduceOp.PRODUCT: np.multiply,
}


def reduce_terms(terms: Sequence[Value], reduction: ReduceOp, divisor: int = 1) -> Value:
    """Fold `terms` by `reduction`, divide by `divisor`, round once to the terms' dtype.

    Works block by block, so that the wide sums never take more than a block.
    """
    dtype, shape = terms[0].dtype, terms[0].shape
    if divisor != 1 and dtype.kind not in _WIDE:
        raise LayoutError(
            f"{dtype} values cannot be divided by {divisor}",
            hint="declare them replicated, or a plain partial sum",
        )
    flat = [np.ascontiguousarray(term.bits).reshape(-1) for term in terms]
    whole = np.empty_like(flat[0])
    for start in range(0, max(1, whole.size), _BLOCK):
        block = slice(start, start + _BLOCK)
        total = widen(flat[0][block], dtype).astype(_WIDE.get(dtype.kind, dtype.storage))
        for bits in flat[1:]:
            _FOLDS[reduction](total, widen(bits[block], dtype), out=total)
        whole[block] = _narrow(total if divisor == 1 else np.divide(total, divisor), dtype)
    return Value(dtype, whole.reshape(shape))


def _narrow(numbers: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
    """The bits that stand for `numbers` in `dtype`, rounded to nearest even: undoes `widen`."""
    match dtype.name:
        case "bfloat16":
            return _bfloat16_bits(numbers.astype(np.float32))
        case "float8_e4m3fn" | "float8_e5m2":
            raise LayoutError(
                f"partial sums in {dtype} are not supported",
                hint="declare a layout without 'partial' and without a divisor",
            )
        case _:
            return numbers.astype(dtype.storage)


def _bfloat16_bits(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)  # rounding a NaN up could make it infinite
    return np.where(np.isnan(numbers), quiet, rounded).astype(np.uint16)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far one value is from another, as sums that add over regions."""

    error: float = 0.0  # sum of squared differences; infinite where only one side is finite
    norm: float = 0.0  # sum of squares of the first
    max_abs_diff: float = 0.0

    def __add__(self, other: Distance) -> Distance:
        worst = max(self.max_abs_diff, other.max_abs_diff)
        return Distance(self.error + other.error, self.norm + other.norm, worst)

    @property
    def rel_l2(self) -> float:
        """The relative L2 distance; infinite from zero to anything else."""
        if not self.error:
            return 0.0
        return math.sqrt(self.error / self.norm) if self.norm else math.inf


def distance(value: Value, other: Value, factor: float = 1.0) -> Distance:
    """How far `other` is from `factor` times `value`, in blocks that stay in the cache."""
    total, ours, theirs = Distance(), value.line(), other.line()
    for start in range(0, ours.numel, _BLOCK):
        block = slice(start, start + _BLOCK)
        numbers, others = (widen(side.bits[block], side.dtype) for side in (ours, theirs))
        if factor != 1:
            numbers = numbers * np.asarray(factor, numbers.dtype)
        total += _block_distance(numbers, others)
    return total


def _block_distance(numbers: NDArray[Any], others: NDArray[Any]) -> Distance:
    if numbers.dtype == others.dtype == np.float32:
        quick = _finite_distance(numbers, others)
        if math.isfinite(quick.error + quick.norm):
            return quick
    return _any_distance(numbers.astype(np.float64), others.astype(np.float64))


def _finite_distance(numbers: NDArray[Any], others: NDArray[Any]) -> Distance:
    """The sums of a block of float32 in its own precision; not finite where an element is not."""
    with np.errstate(over="ignore", invalid="ignore"):
        difference = np.subtract(others, numbers)
        error, norm = np.dot(difference, difference), np.dot(numbers, numbers)
        worst = max(difference.max(initial=0), -difference.min(initial=0))
    return Distance(float(error), float(norm), float(worst))


def _any_distance(numbers: NDArray[np.float64], others: NDArray[np.float64]) -> Distance:
    with np.errstate(invalid="ignore"):  # the infinities of both sides are equal, not NaN apart
        difference = np.abs(others - numbers)
    difference[(numbers == others) | (np.isnan(numbers) & np.isnan(others))] = 0
    difference[np.isnan(difference)] = np.inf
    finite = numbers[np.isfinite(numbers)]
    return Distance(
        float(np.dot(difference, difference)),
        float(np.dot(finite, finite)),
        float(difference.max(initial=0)),
    )
