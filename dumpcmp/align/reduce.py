"""Add up partial terms and measure replicas, in numpy and in the values' own dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from dumpcmp.dtypes import Dtype, Kind
from dumpcmp.errors import LayoutError
from dumpcmp.tensors import Value

Numbers = NDArray[np.generic]

_WIDE = {Kind.FLOAT: "<f8", Kind.COMPLEX: "<c16"}  # exact sums of short floats; ints stay ints
_FOLDS: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "sum": np.add,
    "avg": np.add,  # and divided by the number of terms afterwards
    "max": np.maximum,
    "min": np.minimum,
    "product": np.multiply,
}


def reduce_terms(terms: Iterable[Value], reduction: str, divisor: int) -> Value:
    """Fold `terms` by `reduction`, divide by `divisor`, round once to the terms' dtype."""
    fold = _FOLDS[reduction]
    total: Numbers | None = None
    for term in terms:
        dtype = term.dtype
        numbers = term.numbers().astype(_WIDE.get(dtype.kind, term.bits.dtype))
        total = numbers if total is None else fold(total, numbers)
    assert total is not None
    if divisor == 1:
        return Value(dtype, narrow(total, dtype))
    if dtype.kind not in _WIDE:
        raise LayoutError(
            f"{dtype} values cannot be divided by {divisor}",
            hint="declare them replicated, or a plain partial sum",
        )
    return Value(dtype, narrow(np.divide(total, divisor), dtype))


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


def distance(value: Value, other: Value) -> tuple[float, float]:
    """How far `other` is from `value`: relative L2 distance and largest difference."""
    kind = "<c16" if value.dtype.kind is Kind.COMPLEX else "<f8"
    numbers, others = value.numbers().astype(kind), other.numbers().astype(kind)
    same = (numbers == others) | (np.isnan(numbers) & np.isnan(others))
    difference = np.where(same, 0, others - numbers)
    if not difference.size:
        return 0.0, 0.0
    error, norm = float(np.linalg.norm(difference)), float(np.linalg.norm(numbers))
    relative = error / norm if norm else (float("inf") if error else 0.0)
    return relative, float(np.abs(difference).max())


def _bfloat16_bits(numbers: NDArray[np.float32]) -> Numbers:
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)  # rounding a NaN up could make it infinite
    return np.where(np.isnan(numbers), quiet, rounded).astype(np.uint16)
