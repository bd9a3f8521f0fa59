"""Finds the collective that adds up what ranks hold of a gradient, as code does after a pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dumpcmp.align.mesh.deliveries import Traffic
from dumpcmp.nouns.arithmetic import Collective
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.value import Value

_ADDING = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)
_MOST_PLACES = 64  # in a bucket that begin as the gradient does: the right one is among them


class AddedUp(NamedTuple):
    """What a collective made of the terms on each rank, its name, and the size of its groups."""

    values: Mapping[int, Value]
    by: str
    num: int


def added_up(traffic: Traffic, terms: Sequence[Record]) -> Iterator[AddedUp]:
    """What each collective of the step made of `terms`, one of each rank, if it took them.

    It took them as they are, or all at one place of a longer value, such as a flat bucket.
    """
    held = [traffic.load(record) for record in terms]
    first = terms[0]
    for site in traffic.calls.get(first.rank, {}):
        same_step = (site.model, site.step) == (first.key.model, first.key.step)
        if not same_step or site.op.function not in _ADDING:
            continue
        given, got = (_of_ranks(traffic, site, slot, terms) for slot in ("input.0", "output.0"))
        if len(given) != len(terms) or len(got) != len(terms):
            continue
        if site.op.function == Collective.REDUCE_SCATTER:  # the ranks have it in turn
            whole = Value(got[0].dtype, np.concatenate([one.bits.reshape(-1) for one in got]))
            got = [whole] * len(terms)
        place = _place(held, given)
        made = {} if place is None else _made(terms, got, place)
        if made:
            yield AddedUp(made, f"{site.op}#{site.call}", traffic.group_size(site))


def _made(terms: Sequence[Record], got: Sequence[Value], place: slice) -> dict[int, Value]:
    """What each rank has at `place`; nothing where the result ends before."""
    parts = [_part(value, place) for value in got]
    if any(part.size != math.prod(one.shape) for one, part in zip(terms, parts, strict=True)):
        return {}
    return {
        one.rank: Value(got[0].dtype, part.reshape(one.shape))
        for one, part in zip(terms, parts, strict=True)
    }


def _of_ranks(traffic: Traffic, site: Site, slot: str, terms: Sequence[Record]) -> list[Value]:
    """What the ranks of `terms` have in a slot of the collective, in their order."""
    shards = {record.rank: record for record in traffic.shards(site.key(slot))}
    return [traffic.load(shards[one.rank]) for one in terms if one.rank in shards]


def _place(held: Sequence[Value], given: Sequence[Value]) -> slice | None:
    """Where every rank's term stands in what that rank gave."""
    if any(g.dtype != h.dtype or g.numel < h.numel for g, h in zip(given, held, strict=True)):
        return None
    for start in _places(held[0].bits.reshape(-1), given[0].bits.reshape(-1)):
        place = slice(start, start + held[0].numel)
        if all(
            np.array_equal(_part(g, place), h.bits.reshape(-1))
            for g, h in zip(given, held, strict=True)
        ):
            return place
    return None


def _places(term: NDArray[np.generic], bucket: NDArray[np.generic]) -> list[int]:
    """Where `bucket` has the first element of `term` that is not zero, as it would be there."""
    if not term.size:
        return []
    anchor = int(np.argmax(term != 0))
    last = anchor + bucket.size - term.size
    found = np.flatnonzero(bucket[anchor : last + 1] == term[anchor])
    return [int(start) for start in found[:_MOST_PLACES]]


def _part(value: Value, place: slice) -> NDArray[np.generic]:
    return value.bits.reshape(-1)[place]
