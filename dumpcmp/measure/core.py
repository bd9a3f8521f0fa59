"""The compiled core, where it was built: records of blocks, as numpy makes them, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dumpcmp.measure.blocks import BLOCK, FLOAT64, Lines, Width, row_of, width_of
from dumpcmp.nouns.built import built
from dumpcmp.nouns.row import Closeness, Extent, Metrics
from dumpcmp.nouns.value import Dtype, Kind, Value, dtype_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NAMES = """
    float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2
    int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool
"""
_CODES = {name: code for code, name in enumerate(_NAMES.split())}
_WORST = 11  # where `measure` tells the place of the largest error
_SIDE, _SUMS = 7, 29  # numbers of a record
_PARTS = 8  # of a pair, for each thread
_SHARE = 8  # blocks that are worth a thread of their own

_pairs: Any = built("dumpcmp.measure._pairs")
IS_BUILT = _pairs is not None

Records = list[list[float]]


def measured(golden: Value, target: Value, closeness: Closeness) -> Metrics | None:
    """The Metrics of a pair by one call; None of what is too large, complex, or needs a unit."""
    count = golden.bits.size
    if _threads > 1 and count >= 2 * _SHARE * BLOCK:
        return None
    ways = _ways(golden.dtype.name, target.dtype.name)
    if ways is None:
        return None
    ours, theirs = np.ascontiguousarray(golden.bits), np.ascontiguousarray(target.bits)
    shape = golden.shape
    row = row_of(shape, 1)
    found = _pairs.measure(ours, theirs, ways, row, closeness.rtol, closeness.atol)
    if found is None:
        return None
    if len(found) == 2:
        return Metrics.of_equals(count, found[0], Extent(*found[1]))
    *told, mismatched, is_apart, one, other = found  # as Metrics has them from `num_finite` on
    told[_WORST] = _unravelled(told[_WORST], shape)
    sides = Extent(*one), Extent(*other)
    told += (min(mismatched, count), not is_apart, *sides)
    return Metrics(count, False, *told)


def surveyed_alone(value: Value) -> tuple[int, Extent] | None:
    """What `measured` tells of a value and itself: its finite elements and its Extent."""
    ways = _ways(value.dtype.name, value.dtype.name)
    if ways is None or (_threads > 1 and value.bits.size >= 2 * _SHARE * BLOCK):
        return None
    bits = np.ascontiguousarray(value.bits)
    found = _pairs.measure(bits, bits, ways, row_of(value.shape, 1), 0.0, 0.0)
    return None if found is None else (found[0], Extent(*found[1]))


def _unravelled(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) == 1:
        return (place,)
    found = []
    for size in reversed(shape):
        place, index = divmod(place, size)
        found.append(index)
    return tuple(reversed(found))


@cache
def _ways(golden: str, target: str) -> tuple[int, int, bool, bool, tuple[int, int, int]] | None:
    """How two dtypes are measured: their codes, in float64, as integers, and how ULPs count."""
    ours, theirs = dtype_named(golden), dtype_named(target)
    if Kind.COMPLEX in (ours.kind, theirs.kind):
        return None
    one, two = (Value(dtype, np.empty(0, dtype.storage)) for dtype in (ours, theirs))
    lines = Lines(one, two, max(width_of(ours), width_of(theirs)), 1, 1)
    wide = lines.width is FLOAT64
    return _CODES[golden], _CODES[target], wide, lines.whole_numbers, _ulps(ours, theirs)


def same_bytes(one: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    """Whether two arrays, both in one piece, hold the same bytes."""
    return bool(_pairs.same(one, other))


def surveyed(line: Value, width: Width, row: int, unit: float) -> Records:
    """The record of each block of one side."""
    terms = line.bits, _CODES[line.dtype.name], width is FLOAT64, row, unit
    return _recorded(lambda *room: _pairs.survey(*terms, *room), line.numel, row, _SIDE)


def summed(
    lines: Lines, careful: bool, unit: float, shift: float, rms: float, rtol: float, atol: float
) -> Records:
    """The record of each block of both sides."""
    golden, target = lines.golden, lines.target
    terms = (
        golden.bits,
        _CODES[golden.dtype.name],
        target.bits,
        _CODES[target.dtype.name],
        lines.width is FLOAT64,
        careful,
        lines.whole_numbers,
        lines.row,
        unit,
        shift,
        rms,
        rtol,
        atol,
        _ulps(golden.dtype, target.dtype),
    )
    return _recorded(lambda *room: _pairs.sum_up(*terms, *room), golden.numel, lines.row, _SUMS)


@cache
def _ulps(golden: Dtype, target: Dtype) -> tuple[int, int, int]:
    """How ULPs are counted: in steps of one dtype, or in spacings of the coarser one."""
    if Kind.FLOAT not in (golden.kind, target.kind):
        return 0, 0, 0  # nothing rounds
    coarser = max(golden, target, key=lambda dtype: dtype.eps)
    log = round(np.log2(coarser.eps))
    return (1 if golden == target else 2), log, coarser.least_exponent


def _recorded(work: Callable[..., None], size: int, row: int, length: int) -> Records:
    """What `work` finds in all blocks, by as many threads as there are to spare."""
    step = max(1, BLOCK // row) * row
    whole = size - size % row
    num_blocks = -(-whole // step) + (whole < size)
    found = np.empty((num_blocks, length))
    shares = min(_threads, num_blocks // _SHARE)
    if shares < 2:
        work(0, num_blocks, found)
    else:
        parts = min(_PARTS * shares, num_blocks)  # who is disturbed does fewer of them
        cuts = [num_blocks * number // parts for number in range(parts + 1)]
        with ThreadPoolExecutor(shares) as pool:
            list(pool.map(lambda cut: work(*cut, found[slice(*cut)]), pairwise(cuts)))
    records: Records = found.tolist()
    return records


_threads = 1


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Have large pairs measured by `number` threads; what is found does not depend on it."""
    global _threads
    before, _threads = _threads, number
    try:
        yield
    finally:
        _threads = before
