"""Runs that did the same in the same order: each value's partner is the one of its own name.

Nothing need be searched there. The flow would say so, too, call by call: it decides by names,
lines, links and forms, and by which values of a run have the same bytes; all are the same here.
"""

from __future__ import annotations

from collections.abc import Iterator

from dumpcmp.align.counting import Counting
from dumpcmp.align.flow import Content, content_of
from dumpcmp.align.listing import Listing
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import Pair, PairedBy

_Known = dict[tuple[str, int, Content], int]  # bytes in a step -> the first value that has them


def by_key(golden: Listing, target: Listing, counting: Counting) -> list[Pair]:
    """All values under their own names, as they ran; none where the runs are not alike."""
    if not _are_alike(golden, target, counting):
        return []
    return [Pair(key, key, PairedBy.KEY) for keys in golden.sites.values() for key in keys]


def _are_alike(golden: Listing, target: Listing, counting: Counting) -> bool:
    if len(golden.values) != len(target.values) or len(golden.calls) != len(target.calls):
        return False
    if not all(map(_is_same_value, golden.values.items(), target.values.items())):
        return False
    calls = zip(golden.calls.values(), target.calls.values(), strict=True)
    if any(one != other or one.kernel for one, other in calls):
        return False
    steps = dict.fromkeys((site.model, site.step) for site in golden.sites)
    if any(counting.in_golden_terms(*place) != place[1] for place in steps):
        return False
    return _have_same_knots(golden, target)


_Held = tuple[Key, tuple[Record, ...]]


def _is_same_value(one: _Held, other: _Held) -> bool:
    """Whether two values have one name, one form and one link, each whole on its one rank."""
    (key, records), (name, others) = one, other
    if key != name or len(records) != 1 or len(others) != 1:
        return False
    return _form(records[0]) == _form(others[0]) and not records[0].layout


def _form(record: Record) -> tuple[object, ...]:
    return (
        record.order, record.dtype, record.shape, record.stride, record.storage_offset,
        record.rank, record.layout, record.same_as, record.kept, record.problem, record.seen_in,
    )  # fmt: skip


def _have_same_knots(golden: Listing, target: Listing) -> bool:
    """Whether the same values of both runs have bytes in common, within a run and across.

    A run whose weights were swapped has golden's bytes under other names: that is for the flow.
    """
    ours: _Known = {}
    theirs: _Known = {}
    for (key, one), other in zip(_contents(golden), _contents(target), strict=True):
        place = key.model, key.step
        here = ours.setdefault((*place, one), len(ours)) if one else None
        there = theirs.setdefault((*place, other[1]), len(theirs)) if other[1] else None
        if here != there:
            return False
    return all(ours.get(what, at) == at for what, at in theirs.items())


def _contents(listing: Listing) -> Iterator[tuple[Key, Content | None]]:
    return ((key, content_of(records[0])) for key, records in listing.values.items())
