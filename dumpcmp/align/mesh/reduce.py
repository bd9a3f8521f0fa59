"""Add up partial terms and measure replicas, in numpy and in the values' own dtypes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.dtypes import Dtype, Kind, widen
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.value import Value

Numbers = NDArray[np.generic]
_BLOCK = 1 << 17  # elements

_WIDE = {Kind.FLOAT: "<f8", Kind.COMPLEX: "<c16"}  # exact sums of short floats; ints stay ints
_FOLDS: dict[str, np.ufunc] = {
    "sum": np.add,
    "avg": np.add,  # and divided by the number of terms afterwards
    "max": np.maximum,
    "min": np.minimum,
    "product": np.multiply,
}


def reduce_terms(terms: Iterable[Value], reduction: str, divisor: int) -> Value:
    """Fold `terms` by `reduction`, divide by `divisor`, round once to the terms' dtype.

    Works block by block, so that the wide sums never take more than a block.
    """
    values = list(terms)
    dtype, shape = values[0].dtype, values[0].shape
    if divisor != 1 and dtype.kind not in _WIDE:
        raise LayoutError(
            f"{dtype} values cannot be divided by {divisor}",
            hint="declare them replicated, or a plain partial sum",
        )
    flat = [np.ascontiguousarray(value.bits).reshape(-1) for value in values]
    whole = np.empty(flat[0].shape, flat[0].dtype)
    for start in range(0, max(1, whole.size), _BLOCK):
        block = slice(start, start + _BLOCK)
        total = _fold([widen(bits[block], dtype) for bits in flat], reduction, dtype)
        whole[block] = narrow(total if divisor == 1 else np.divide(total, divisor), dtype)
    return Value(dtype, whole.reshape(shape))


def _fold(terms: Sequence[Numbers], reduction: str, dtype: Dtype) -> Numbers:
    total = terms[0].astype(_WIDE.get(dtype.kind, dtype.storage))
    for term in terms[1:]:
        _FOLDS[reduction](total, term, out=total)
    return total


def narrow(numbers: Numbers, dtype: Dtype) -> Numbers:
    """The bits that stand for `numbers` in `dtype`, rounded to nearest even."""
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


def distance(value: Value, other: Value) -> Distance:
    """How far `other` is from `value`, in blocks that stay in the cache."""
    if value.numel > _BLOCK:
        longest = int(np.argmax(value.shape))
        halves = zip(_halves(value, longest), _halves(other, longest), strict=True)
        return sum((distance(one, two) for one, two in halves), Distance())
    numbers, others = value.numbers(), other.numbers()
    if numbers.dtype == others.dtype == np.float32:
        quick = _finite_distance(numbers, others)
        if math.isfinite(quick.error + quick.norm):
            return quick
    kind = "<c16" if value.dtype.kind is Kind.COMPLEX else "<f8"
    return _any_distance(numbers.astype(kind), others.astype(kind))


def _finite_distance(numbers: Numbers, others: Numbers) -> Distance:
    """The sums of a block of float32 in its own precision; not finite where an element is not."""
    with np.errstate(over="ignore", invalid="ignore"):
        difference = np.subtract(others, numbers).reshape(-1)
        ours = np.ascontiguousarray(numbers).reshape(-1)
        error, norm = float(np.dot(difference, difference)), float(np.dot(ours, ours))
        worst = max(float(difference.max(initial=0)), -float(difference.min(initial=0)))
    return Distance(error, norm, worst)


def _any_distance(numbers: NDArray[Any], others: NDArray[Any]) -> Distance:
    with np.errstate(invalid="ignore"):  # the infinities of both sides are equal, not NaN apart
        difference = np.abs(np.subtract(others, numbers))
    difference[(numbers == others) | (np.isnan(numbers) & np.isnan(others))] = 0
    difference[np.isnan(difference)] = np.inf
    finite = numbers[np.isfinite(numbers)]
    return Distance(
        float(np.vdot(difference, difference).real),
        float(np.vdot(finite, finite).real),
        float(difference.max(initial=0)),
    )


def products(value: Value, other: Value) -> tuple[float, float, float]:
    """The squared norm of `value`, its product with `other`, and the squared norm of that."""
    if value.numel > _BLOCK:
        longest = int(np.argmax(value.shape))
        halves = zip(_halves(value, longest), _halves(other, longest), strict=True)
        one, two = (products(*pair) for pair in halves)
        return one[0] + two[0], one[1] + two[1], one[2] + two[2]
    ours, theirs = (side.numbers().astype(np.float64).reshape(-1) for side in (value, other))
    with np.errstate(invalid="ignore", over="ignore"):
        return float(ours @ ours), float(ours @ theirs), float(theirs @ theirs)


def same_bits(value: Value, other: Value) -> bool:
    """Whether both values have the same bits, NaN included."""
    unsigned = f"<u{min(value.dtype.nbytes, 8)}"
    one, two = (np.ascontiguousarray(side.bits).reshape(-1) for side in (value, other))
    return np.array_equal(one.view(unsigned), two.view(unsigned))


def _halves(value: Value, dim: int) -> tuple[Value, Value]:
    one, two = np.array_split(value.bits, 2, axis=dim)
    return Value(value.dtype, one), Value(value.dtype, two)


def _bfloat16_bits(numbers: NDArray[np.float32]) -> Numbers:
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)  # rounding a NaN up could make it infinite
    return np.where(np.isnan(numbers), quiet, rounded).astype(np.uint16)
