"""The order in which numbers are added up: the same in numpy and in C, so to the same bits.

A row is cut into pieces of 256 numbers. In a piece each of eight lanes adds every eighth number,
one after another, in the type that is computed in; the lanes of the pieces are added in float64,
then halves of the lanes, and then the rows of a block, one after another. docs/design/speed.md
says why.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dumpcmp.measure.blocks import Numbers

LANES = 8
_STEPS = 32  # of eight numbers each: a piece


def laid(numbers: Numbers, row: int) -> Numbers:
    """Rows of `row` numbers as (step, piece, row, lane); zeros fill what is not full."""
    num_rows, steps = numbers.size // row, min(_STEPS, -(-row // LANES))
    pieces = -(-row // (steps * LANES))
    length = pieces * steps * LANES
    rows = np.ascontiguousarray(numbers)
    if length != row:
        rows = np.zeros((num_rows, length), numbers.dtype)
        rows[:, :row] = numbers.reshape(num_rows, row)
    eights = rows.reshape(-1).view(f"V{LANES * rows.itemsize}")  # copied as one, which is faster
    moved = eights.reshape(num_rows, pieces, steps).transpose(2, 1, 0).copy()
    return moved.view(numbers.dtype).reshape(steps, pieces, num_rows, LANES)


def first_place(numbers: Numbers, number: float, row: int) -> int:
    """Where the first that is `number` lay before they were `laid`."""
    where = np.flatnonzero(numbers.reshape(-1) == number)
    step, piece, nth, lane = np.unravel_index(where, numbers.shape)
    within = (piece * numbers.shape[0] + step) * LANES + lane
    return int((nth * row + within)[within < row].min())


def row_sums(numbers: Numbers) -> NDArray[np.float64]:
    """The sum of each row of numbers that were `laid`.

    A sum along the first axis adds whole steps, one after another; zero is added so that none of
    minus zeros is one.
    """
    lanes = np.add.reduce(np.add.reduce(numbers, axis=0).astype(np.float64), axis=0)
    half = LANES
    while half > 1:
        half //= 2
        lanes = lanes[:, :half] + lanes[:, half : 2 * half]
    sums: NDArray[np.float64] = lanes[:, 0] + 0.0
    return sums


def total(sums: NDArray[np.float64]) -> float:
    """Numbers added up one after another."""
    return float(np.add.accumulate(sums)[-1])
