"""What a value looks like at a glance: its extremes, and a few of its elements."""

from __future__ import annotations

import numpy as np

from dumpcmp.nouns.dtypes import widen
from dumpcmp.nouns.value import Value

_BLOCK = 1 << 20  # elements widened at once


def extremes(value: Value) -> str:
    """Smallest and largest element, and how many are NaN; of complex numbers their size."""
    low, high, num_nan = np.inf, -np.inf, 0
    flat = value.bits.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        numbers = widen(flat[start : start + _BLOCK], value.dtype)
        block = np.abs(numbers) if numbers.dtype.kind == "c" else numbers
        unordered = np.isnan(block) if block.dtype.kind == "f" else np.zeros(block.shape, bool)
        num_nan += int(unordered.sum())
        if not unordered.all():
            low = min(low, block[~unordered].min())
            high = max(high, block[~unordered].max())
    told = [] if low > high else [f"{low:.6g} .. {high:.6g}"]
    return ", ".join([*told, *([f"{num_nan} NaN"] if num_nan else [])])


def excerpt(value: Value, most: int = 6) -> str:
    """The elements of `value`, the middle left out where there are many."""
    with np.printoptions(threshold=most**2, edgeitems=most // 2, precision=6, linewidth=88):
        return str(value.numbers())
