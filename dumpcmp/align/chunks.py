"""Makes chunks whole: what one run puts through a loop and the other takes at once.

A feed-forward that is run over a part of the rows at a time, a loss over a part of the tokens, or
a batch that a model divides itself, give together what the whole gives. The laps of such a loop
are shards of one call, and so compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dumpcmp.align.listing import Listing
from dumpcmp.align.pieces import Extents, joined
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.layouts import parse_layout
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import Cut, Pair, PairedBy


def beside_parts(pairs: Sequence[Pair], golden: Listing, target: Listing) -> Iterator[Pair]:
    """`pairs`; a chunk that is taken alone is beside the part of the whole that it is.

    One that is no part, such as a term of a sum, is beside nothing, nor is what was made of some
    chunks and of something else.
    """
    if not (_has_chunks(golden) or _has_chunks(target)):
        yield from pairs
        return
    parts = [(pair, _as_part(pair, golden, target)) for pair in pairs]
    placed = [part for _, part in parts if part is not None]
    ours, theirs = {pair.golden for pair in placed}, {pair.target for pair in placed}
    for pair, part in parts:
        if part is not None:
            yield part
            continue
        if pair.golden not in ours:
            ours.add(pair.golden)
            yield Pair(pair.golden, None)
        if pair.target not in theirs:
            theirs.add(pair.target)
            yield Pair(None, pair.target)


def _has_chunks(listing: Listing) -> bool:
    return listing.num_ranks == 1 and any(
        len(records) > 1 and parse_layout(records[0].layout).is_in_chunks
        for records in listing.values.values()
    )


def _as_part(pair: Pair, golden: Listing, target: Listing) -> Pair | None:
    """`pair` of a value and one that it is beside, or is a part of; None where it is neither."""
    if pair.golden is None or pair.target is None or pair.by is not PairedBy.VALUE:
        return pair
    one, other = golden.values[pair.golden], target.values[pair.target]
    if _is_mixed(golden, pair.golden) or _is_mixed(target, pair.target):
        return None
    if chunks := _chunks(target, pair.target):
        part = _part(other, chunks, one[0].shape)
        return replace(pair, golden_part=part) if part else None
    if chunks := _chunks(golden, pair.golden):
        part = _part(one, chunks, other[0].shape)
        return replace(pair, target_part=part) if part else None
    is_whole = len(one) == len(other) == 1
    return None if is_whole and one[0].shape != other[0].shape else pair


def _is_mixed(listing: Listing, key: Key) -> bool:
    """Whether a function gave it that took single chunks."""
    if key.op.is_module or not key.slot.is_output:
        return False
    taken = (other for other in listing.sites[key.site] if other.slot.is_input)
    return any(_chunks(listing, other) for other in taken)


def _chunks(listing: Listing, key: Key) -> Sequence[Record]:
    """The chunks of which a value is one, or of which only some are in it; none of others."""
    origins = listing.origins(key)
    chunks = listing.values.get(origins[0], ()) if origins else ()
    if len(chunks) < 2 or not parse_layout(chunks[0].layout).is_in_chunks:
        return ()
    return chunks if len(listing.values[key]) == 1 or len(origins) > 1 else ()


def _part(records: Sequence[Record], chunks: Sequence[Record], whole: Extents) -> Cut | None:
    """The part of a whole that a value is which is one of its chunks."""
    if len(records) > 1 or not records[0].digest:
        return None
    parts = joined([chunk.shape for chunk in chunks], whole) or ()
    both = zip(chunks, parts, strict=False)
    return next((part for chunk, part in both if chunk.digest == records[0].digest), None)
