"""Whether a tensor is another one that was quantised: rounded to levels, in groups of elements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.levels import Levels, Quantised, Spacing
from dumpcmp.nouns.value import Kind, Value

_GROUPS = (16, 32, 64, 128, 256)  # elements in a row that have one scale
_FEWEST = 8  # elements of a group, with which anything is told of its levels,
_FLOATING = 2  # and for each significand,
_LISTED = 4  # and for each level of a table: fewer may stand anywhere
_LOOKED_AT = 32  # groups in which levels are looked for: of all, each element is held to its limit
_IN_EACH = 256  # elements of such a group
_PER_LEVEL = {Spacing.LISTED: _LISTED, Spacing.FLOATING: _FLOATING, Spacing.EVEN: 0}
_OFF = 0.05  # of a step: how far from a level an element may stand,
_TOO_FAR = 0.2  # and with the rounding of its own dtype: above it no levels could be seen
_CLIPPED = 2.0  # times the limit: what lies beyond the last level is one step off at most
_FIRST = 1 << 12  # elements, by which it is mostly told already that they are other numbers
_BLOCK = 1 << 22  # elements that are held against each other together

WideGroups = NDArray[np.float64]


def quantised_from(golden: Value, target: Value, levels: Levels) -> Quantised | None:
    """In what groups each element of `target` is golden's to the nearest of `levels`, if in any.

    Smaller groups come first: there the limits are the narrowest.
    """
    floats = golden.dtype.kind is Kind.FLOAT and target.dtype.kind is Kind.FLOAT
    if not floats or golden.shape != target.shape or len(golden.shape) < 2:
        return None
    fewest = max(_FEWEST, _PER_LEVEL[levels.spacing] * levels.count)
    numbers = golden.numbers(), target.numbers()
    for group, order in _groupings(golden.shape):
        ours, theirs = (_grouped(each, order) for each in numbers)
        if ours.shape[1] < fewest or not _is_near(ours, theirs, levels, target.dtype.eps):
            continue
        if not _are_levels(theirs, levels, target.dtype.eps):
            continue
        return _found(*numbers, levels, group)
    return None


def _groupings(shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, bool]]]:
    """What may have a scale of its own: its name, its number of elements and how it lies.

    Rows are those of a weight, for each output, or of what goes through it, for each token.
    """
    numel, last = math.prod(shape), shape[-1]
    names = {size: f"groups of {size}" for size in _GROUPS if numel % size == 0}
    names |= {numel // shape[0]: "each output", last: "each row", numel: "the whole"}
    for size in sorted(names):
        if size == numel:
            yield "each column", (numel // last, True)
        if size <= numel:
            yield names[size], (size, False)


def _grouped(numbers: NDArray[Any], order: tuple[int, bool]) -> NDArray[Any]:
    """The elements with a group in each row."""
    size, is_column = order
    lines = numbers.reshape(-1, numbers.shape[-1]).T if is_column else numbers
    return lines.reshape(-1, size)


def _is_near(ours: NDArray[Any], theirs: NDArray[Any], levels: Levels, rounding: float) -> bool:
    """Whether each element is within half a step of golden's, or beyond the last level."""
    share = levels.share + rounding
    near = _are_nearest if levels.table else _are_near
    return all(near(*block, levels, share) for block in _blocks(ours, theirs))


def _blocks(ours: NDArray[Any], theirs: NDArray[Any]) -> Iterator[tuple[WideGroups, WideGroups]]:
    """Both, some groups at a time, and numbers that are wide enough."""
    first, rows = (max(1, size // ours.shape[1]) for size in (_FIRST, _BLOCK))
    for start, end in pairwise([0, *range(first, len(ours), rows), len(ours)]):
        part = slice(start, end)
        yield ours[part].astype(np.float64), theirs[part].astype(np.float64)


def _are_near(ours: WideGroups, theirs: WideGroups, levels: Levels, share: float) -> bool:
    sizes = np.abs(ours)
    limit = levels.half * sizes.max(axis=1, keepdims=True) + share * sizes
    off = np.abs(theirs - ours)
    if not np.isfinite(off).all():
        return False
    above = (theirs >= theirs.max(axis=1, keepdims=True)) & (ours > theirs)
    below = (theirs <= theirs.min(axis=1, keepdims=True)) & (ours < theirs)
    return bool((off <= np.where(above | below, _CLIPPED * limit, limit)).all())


def _are_nearest(ours: WideGroups, theirs: WideGroups, levels: Levels, share: float) -> bool:
    """The same of levels that are listed: how far the next one is depends on where one stands."""
    table = np.array(levels.table)
    middles = (table[1:] + table[:-1]) / 2
    sizes = np.abs(ours)
    scale = np.maximum(sizes.max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    at = np.searchsorted(middles, theirs / scale)
    least, most = np.concatenate([[-np.inf], middles])[at], np.concatenate([middles, [np.inf]])[at]
    room = share * sizes
    is_within = (ours >= least * scale - room) & (ours <= most * scale + room)
    return bool((is_within & (np.abs(theirs - table[at] * scale) <= share * scale)).all())


def _are_levels(theirs: NDArray[Any], levels: Levels, eps: float) -> bool:
    """Whether the elements stand on so many levels, as far as one can see in some groups."""
    step = max(1, len(theirs) // _LOOKED_AT)
    groups = theirs[::step][:_LOOKED_AT].astype(np.float64)
    return all(_stands(np.unique(group[:_IN_EACH]), levels, eps) for group in groups)


def _stands(numbers: WideGroups, levels: Levels, eps: float) -> bool:
    """Whether these numbers, which are sorted, stand on levels."""
    if numbers.size < 2:
        return True
    if levels.spacing is Spacing.LISTED:
        return numbers.size <= levels.count
    if levels.spacing is Spacing.FLOATING:
        return _num_significands(numbers, eps) <= levels.count
    return _is_even(numbers, levels.count, eps)


def _num_significands(numbers: WideGroups, eps: float) -> int:
    """How many numbers there are but for powers of two and the sign."""
    parts = np.sort(np.frexp(np.abs(numbers[numbers != 0]))[0])
    if not parts.size:
        return 0
    grain = max(2 * eps, 2.0**-20)
    firsts = [parts[0]]
    for part in parts:
        if part - firsts[-1] > grain:  # numbers without gaps are not one that is rounded
            firsts.append(part)
    is_round = bool(2 * parts[0] - parts[-1] <= grain)  # the next power of two but for rounding
    return len(firsts) - (is_round and len(firsts) > 1)


def _is_even(numbers: WideGroups, count: int, eps: float) -> bool:
    """Whether they are multiples of one step, from the least of them: of its width so many."""
    span = numbers[-1] - numbers[0]
    steps = np.arange(1, count)
    at = (numbers - numbers[0])[:, None] / span * steps  # in steps, of each width
    off = np.abs(at - np.round(at)).max(axis=0)
    rounding = eps * np.abs(numbers).max() / span * steps
    return bool(((off <= _OFF + rounding) | (rounding > _TOO_FAR)).any())


def _found(golden: NDArray[Any], target: NDArray[Any], levels: Levels, group: str) -> Quantised:
    ours, theirs = (each.reshape(-1, each.shape[-1]) for each in (golden, target))
    squares = apart = along = 0.0
    for one, other in _blocks(ours, theirs):
        off = other - one
        squares += float((one * one).sum())
        apart += float((off * off).sum())
        along += float((off * one).sum())
    if not squares:
        return Quantised(levels, group, 0.0, 0.0, 0.0)
    gain = along / squares
    chance = _scatter(ours, theirs, gain) / squares
    return Quantised(levels, group, math.sqrt(apart / squares), gain, chance)


def _scatter(ours: NDArray[Any], theirs: NDArray[Any], gain: float) -> float:
    """The standard error of what is off along golden, by what is off besides a gain.

    Few elements decide on it where they are far larger than others; and whole columns or rows may
    be off alike, as those of tokens are that hardly differ.
    """
    alone = by_rows = 0.0
    columns = np.zeros(ours.shape[1])
    for one, other in _blocks(ours, theirs):
        left = (other - (1 + gain) * one) * one
        alone += float((left * left).sum())
        by_rows += float(np.square(left.sum(axis=1)).sum())
        columns += left.sum(axis=0)
    return math.sqrt(max(alone, by_rows, float((columns * columns).sum())))
