"""Values that one side holds in one and the other in several: merged qkv, gate and up, experts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from dumpcmp.align.listing import Listing
from dumpcmp.align.partners import Partners
from dumpcmp.align.renaming import Merge, unwrapped
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import Cut, Pair, PairedBy

Extents = tuple[int, ...]


def parts_of(shapes: Sequence[Extents], whole: Extents) -> list[Cut] | None:
    """Where pieces lie in the whole that they make up one after another; None where they do not.

    The last dim that fits counts, which is that of features; of stacked pieces, a dim of its own.
    """
    for axis in reversed(range(len(whole))):
        others = {shape[:axis] + shape[axis + 1 :] for shape in shapes if len(shape) == len(whole)}
        if others == {whole[:axis] + whole[axis + 1 :]} and len(shapes) > 1:
            ends = list(accumulate(shape[axis] for shape in shapes))
            if all(len(shape) == len(whole) for shape in shapes) and ends[-1] == whole[axis]:
                return [Cut(axis, a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    for axis in range(len(whole)):
        stacked = {whole[:axis] + whole[axis + 1 :]}
        if set(shapes) == stacked and len(shapes) == whole[axis]:
            return [Cut(axis, n, n + 1, stacked=True) for n in range(len(shapes))]
    return None


def merged_pairs(sides: Partners) -> list[Pair]:
    """What the mapping calls pieces of another value, each beside its part of it."""
    return [pair for merge in sides.renaming.merges for pair in _pairs(sides, merge)]


def with_merged(found: Sequence[Pair], pairs: Iterable[Pair]) -> list[Pair]:
    """`pairs`, but `found` for what stands alone and is in those."""
    ours, theirs = {pair.golden for pair in found}, {pair.target for pair in found}
    kept = [
        pair
        for pair in pairs
        if pair.both or (pair.golden not in ours and pair.target not in theirs)
    ]
    return [*kept, *found]


def _pairs(sides: Partners, merge: Merge) -> Iterator[Pair]:
    pieces, whole = (
        (sides.golden, sides.target) if merge.of_golden else (sides.target, sides.golden)
    )
    for site, group in _groups(sides, merge, pieces, whole).items():
        for key in whole.sites[site]:
            keys = [one.key(key.slot) for one in group]
            if all(one in pieces.values for one in keys):
                yield from _cut(key, keys, whole.record(key), pieces, merge.of_golden)


def _groups(
    sides: Partners, merge: Merge, pieces: Listing, whole: Listing
) -> dict[Site, list[Site]]:
    """The calls of pieces by the call that has them in one; all of them, in their order."""
    terms: Mapping[Site, Site] = sides.terms
    own = {terms.get(site, site) if merge.of_golden else site: site for site in whole.sites}
    found: dict[Site, dict[int, Site]] = {}
    for site in pieces.sites:
        here = site if merge.of_golden else terms[site]
        for n, rule in enumerate(merge.rules):
            name = rule.renamed(unwrapped(here.op))
            there = own.get(here._replace(op=type(here.op)(name))) if name is not None else None
            if there is not None:
                found.setdefault(there, {})[n] = site
    num = len(merge.rules)
    return {site: [g[n] for n in range(num)] for site, g in found.items() if len(g) == num}


def _cut(
    whole: Key, pieces: Sequence[Key], record: Record, listing: Listing, of_golden: bool
) -> Iterator[Pair]:
    parts = parts_of([listing.record(key).shape for key in pieces], record.shape)
    for key, part in zip(pieces, parts or (), strict=False):
        if of_golden:
            yield replace(Pair(key, whole, PairedBy.MAPPING), target_part=part)
        else:
            yield replace(Pair(whole, key, PairedBy.MAPPING), golden_part=part)


def lies_at(record: Record, part: Cut) -> tuple[Extents, Extents, int]:
    """The shape, strides and offset of a part of a value, as a view of it has them."""
    axis, stride = part.axis, record.stride or _dense(record.shape)
    offset = record.storage_offset + part.start * stride[axis]
    if part.stacked:
        shape = record.shape[:axis] + record.shape[axis + 1 :]
        return shape, stride[:axis] + stride[axis + 1 :], offset
    shape = (*record.shape[:axis], part.stop - part.start, *record.shape[axis + 1 :])
    return shape, stride, offset


def _dense(shape: Extents) -> Extents:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
