"""Where pieces lie in the whole that they make up: one after another, stacked, or taking turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from numpy.typing import NDArray

from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import Cut

Extents = tuple[int, ...]
Lie = tuple[tuple[tuple[int, int], ...], int]  # sizes and strides of dims that do not merge, offset


def parts_of(
    shapes: Sequence[Extents], whole: Extents, axis: int | None = None, groups: int = 1
) -> list[Cut] | None:
    """Where pieces lie in the whole that they make up; None where their shapes do not fit.

    Without an `axis` the last dim that fits counts, which is that of features; of stacked pieces,
    a dim of their own. In several `groups` the pieces take turns.
    """
    axes = list(reversed(range(len(whole)))) if axis is None else [axis % max(1, len(whole))]
    ways = [_joined(shapes, whole, one, groups) for one in axes]
    if groups == 1:
        ways += [_stacked(shapes, whole, one) for one in sorted(axes)]
        ways += [_stacked_rows(shapes, whole, one) for one in sorted(axes)]
    return next(filter(None, ways), None)


def _joined(shapes: Sequence[Extents], whole: Extents, axis: int, groups: int) -> list[Cut] | None:
    """Pieces one after another along `axis`, in each of its groups."""
    if len(shapes) < 2 or axis >= len(whole) or any(len(s) != len(whole) for s in shapes):
        return None
    if any(_without(shape, axis) != _without(whole, axis) for shape in shapes):
        return None
    if sum(shape[axis] for shape in shapes) != whole[axis]:
        return None
    if any(shape[axis] % groups for shape in shapes):
        return None
    ends = accumulate((shape[axis] // groups for shape in shapes), initial=0)
    return [Cut(axis, a, b, groups=groups) for a, b in pairwise(ends)]


def _stacked(shapes: Sequence[Extents], whole: Extents, axis: int) -> list[Cut] | None:
    """Pieces that are the indices of an `axis` which none of them has."""
    if axis >= len(whole) or set(shapes) != {_without(whole, axis)} or len(shapes) != whole[axis]:
        return None
    return [Cut(axis, n, n + 1, stacked=True) for n in range(len(shapes))]


def _stacked_rows(shapes: Sequence[Extents], whole: Extents, axis: int) -> list[Cut] | None:
    """A stack of joined pieces: the gate and up projections of each expert."""
    size = whole[axis]
    num, rest = divmod(len(shapes), size) if size else (0, 0)
    if num < 2 or rest:
        return None
    rows = [parts_of(shapes[n * num : (n + 1) * num], _without(whole, axis)) for n in range(size)]
    if not all(rows):
        return None
    parts = enumerate(part for row in rows for part in row or ())
    return [Cut(axis, n // num, n // num + 1, True, inner=part) for n, part in parts]


def _without(shape: Extents, axis: int) -> Extents:
    return shape[:axis] + shape[axis + 1 :]


def cut_out(whole: NDArray[Any], part: Cut) -> NDArray[Any]:
    """The elements of `whole` that `part` names, in the shape that they have as a piece."""
    before, after = whole.shape[: part.axis], whole.shape[part.axis + 1 :]
    if part.stacked:
        one = whole[(slice(None),) * part.axis + (part.start,)]
        return cut_out(one, part.inner) if part.inner else one
    turns = whole.reshape(*before, part.groups, -1, *after)
    taken = turns[(slice(None),) * (part.axis + 1) + (slice(part.start, part.stop),)]
    return taken.reshape(*before, -1, *after)


def part_shape(whole: Extents, part: Cut) -> Extents:
    """The shape that a part has as a piece."""
    if part.stacked:
        one = _without(whole, part.axis)
        return part_shape(one, part.inner) if part.inner else one
    size = (part.stop - part.start) * part.groups
    return (*whole[: part.axis], size, *whole[part.axis + 1 :])


def num_shown(record: Record) -> int:
    """How many elements of its storage a view shows, each counted once."""
    strides = record.stride or _dense(record.shape)
    return math.prod(size for size, step in zip(record.shape, strides, strict=True) if step)


def lie_of(record: Record) -> Lie:
    """How a view lies in its storage, whatever dims its elements are counted in."""
    return laid(record.shape, record.stride or _dense(record.shape), record.storage_offset)


def laid(shape: Extents, stride: Extents, offset: int) -> Lie:
    """Dims that can be merged are: what lies alike has the same elements in the same order.

    >>> laid((2, 3, 4), (12, 4, 1), 0) == laid((6, 4), (4, 1), 0) == laid((24,), (1,), 0)
    True
    """
    merged: list[tuple[int, int]] = []
    for size, step in zip(shape, stride, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == size * step:
            merged[-1] = (merged[-1][0] * size, step)
        else:
            merged.append((size, step))
    return tuple(merged), offset


def part_lies(record: Record, part: Cut) -> Lie:
    """How a part of a value lies, as a view of it has it."""
    stride = record.stride or _dense(record.shape)
    return _part_lies(record.shape, stride, record.storage_offset, part)


def _part_lies(shape: Extents, stride: Extents, offset: int, part: Cut) -> Lie:
    axis = part.axis
    offset += part.start * stride[axis]
    if part.stacked:
        one, steps = _without(shape, axis), _without(stride, axis)
        return (
            _part_lies(one, steps, offset, part.inner) if part.inner else laid(one, steps, offset)
        )
    period = shape[axis] // part.groups
    turns = (*shape[:axis], part.groups, part.stop - part.start, *shape[axis + 1 :])
    return laid(turns, (*stride[:axis], period * stride[axis], *stride[axis:]), offset)


def _dense(shape: Extents) -> Extents:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
