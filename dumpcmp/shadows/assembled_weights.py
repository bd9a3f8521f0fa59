"""A weight that ranks hold in parts: which part each of them has, and in what order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dumpcmp.nouns.layouts import parse_layout
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.shadows.fingerprints import weights_of
from dumpcmp.shadows.program import ValueId


class AssembledPart(NamedTuple):
    """What one rank has of a weight."""

    value: ValueId
    record: Record
    first: int  # index along the dim that is cut


class AssembledWeight(NamedTuple):
    """A weight put together, and what other ranks have of it once more."""

    dim: int
    parts: Sequence[AssembledPart]
    replicas: Sequence[AssembledPart] = ()


def assembled(
    shape: tuple[int, ...], held: Sequence[tuple[ValueId, Record]]
) -> AssembledWeight | None:
    """The parts of a weight of this shape, by their layouts or else in the order of ranks."""
    if len(held) < 2 or any(record.kept is not Kept.FULL for _, record in held):
        return None
    dims = {_cut_dim(shape, record.shape) for _, record in held}
    if len(dims) != 1 or None in dims:
        return None
    dim = next(each for each in dims if each is not None)
    ordered = sorted(held, key=lambda one: one[0].rank)
    return _by_layout(shape[dim], dim, ordered) or _by_rank(shape[dim], dim, ordered)


def order_of_indices(
    whole: Tensor, parts: Tensor, dim: int, dtypes: tuple[str, str]
) -> tuple[int, ...] | None:
    """Where in `parts` each index of `whole` lies, as of merged projections; None if not all do.

    Both are rounded to the shorter of two dtypes first.
    """
    try:
        short = min((getattr(torch, one) for one in dtypes), key=lambda one: torch.finfo(one).bits)
    except TypeError:  # integers
        return None
    ours, theirs = (
        each.to(short).to(torch.float64).movedim(dim, 0).reshape(each.shape[dim], -1)
        for each in (whole, parts)
    )
    weights = weights_of(ours.shape[1])
    places: dict[float, list[int]] = {}
    for at, total in enumerate((theirs @ weights).tolist()):
        places.setdefault(total, []).append(at)
    found = [places[t].pop(0) if places.get(t) else -1 for t in (ours @ weights).tolist()]
    if -1 in found or not torch.equal(theirs[found], ours):
        return None
    return tuple(found)


def _cut_dim(whole: tuple[int, ...], part: tuple[int, ...]) -> int | None:
    if len(whole) != len(part):
        return None
    unequal = [dim for dim, sizes in enumerate(zip(whole, part, strict=True)) if len({*sizes}) > 1]
    return unequal[0] if len(unequal) == 1 else None


def _by_layout(
    size: int, dim: int, held: Sequence[tuple[ValueId, Record]]
) -> AssembledWeight | None:
    places = [_first_index(size, dim, record) for _, record in held]
    known = [at for at in places if at is not None]
    if len(known) < len(held):
        return None
    return _complete(
        size, dim, [AssembledPart(*one, at) for one, at in zip(held, known, strict=True)]
    )


def _first_index(size: int, dim: int, record: Record) -> int | None:
    """Where a rank's part begins, as torch cuts tensors into chunks; None where nobody says."""
    layout = parse_layout(record.layout) if record.layout else None
    if layout is None or len(layout.dims) <= dim or len(layout.dims[dim].axes) != 1:
        return None
    (axis,) = layout.dims[dim].axes
    at = next((at for at in layout.coordinates if at.axis == axis), None)
    return None if at is None or not at.size else min(size, at.index * -(-size // at.size))


def _by_rank(size: int, dim: int, held: Sequence[tuple[ValueId, Record]]) -> AssembledWeight | None:
    """One part after the other, or again from the beginning where that has made up the whole."""
    parts, first = list[AssembledPart](), 0
    for value, record in held:
        parts.append(AssembledPart(value, record, first))
        first = (first + record.shape[dim]) % size
    return _complete(size, dim, parts)


def _complete(size: int, dim: int, parts: Sequence[AssembledPart]) -> AssembledWeight | None:
    """The parts one after the other, if they are the whole; any more are replicas."""
    ordered, others, end = list[AssembledPart](), list[AssembledPart](), 0
    for part in sorted(parts, key=lambda one: one.first):
        if part.first == end:
            ordered.append(part)
            end += part.record.shape[dim]
        else:
            others.append(part)
    if end != size or any(part.first not in {one.first for one in ordered} for part in others):
        return None
    return AssembledWeight(dim, ordered, others)
