"""Tells the gradient of a value from the terms of it that those who take the value give back.

Golden's takers of a value share its gradient. Where each has a copy of its own in the target, each
has only its own term there: both are right, and they are not the same. The whole is known at who
made the value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from dumpcmp.align.flow import content_of
from dumpcmp.align.listing import Listing
from dumpcmp.align.partners import Partners
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.row import Pair

_GRADIENTS = ("grad_input", "grad_output")


def is_at_maker(golden: Key, target: Key) -> bool:
    """Whether a pair of gradients is of what two calls gave out."""
    return golden.slot.kind == target.slot.kind == "grad_output"


def without_terms(sides: Partners, pairs: Sequence[Pair]) -> Iterator[Pair]:
    """`pairs`, in which one side's gradient of a value and a term of the other's stand alone."""
    both = [(pair.golden, pair.target) for pair in pairs if pair.golden and pair.target]
    terms = _terms(sides.golden, sides.target, both)
    golden_terms = _terms(sides.target, sides.golden, [(theirs, ours) for ours, theirs in both])
    for pair in pairs:
        if pair.both and (pair.target in terms or pair.golden in golden_terms):
            yield from (Pair(pair.golden, None), Pair(None, pair.target))
        else:
            yield pair


def _terms(one: Listing, other: Listing, pairs: Sequence[tuple[Key, Key]]) -> set[Key]:
    """Gradients of the `other` run that are terms: takers have several where this `one` has one."""
    whole: dict[Key, Key] = {}
    takers: dict[Key, list[Key]] = defaultdict(list)
    for ours, theirs in pairs:
        if is_at_maker(ours, theirs) and not _is_copied(one, other, ours, theirs):
            whole[one.first(ours)] = theirs
        elif ours.slot.kind == theirs.slot.kind and ours.slot.kind in _GRADIENTS:
            takers[one.first(ours)].append(theirs)
    found: set[Key] = set()
    for first, keys in takers.items():
        contents = {content_of(other.record(key)) for key in keys}
        if first in whole and len(contents) > 1:
            found.update(key for key in keys if _is_part(other, key, whole[first]))
    return found


def _is_copied(one: Listing, other: Listing, ours: Key, theirs: Key) -> bool:
    """Whether a call gives out what it was given in `one` run, and something new in the `other`.

    A cast to the dtype that a value has already is such a call: who takes what it gives takes the
    value itself in this run, and a copy in the other.
    """
    return _is_passed_on(one, ours) and not _is_passed_on(other, theirs)


def _is_passed_on(listing: Listing, gradient: Key) -> bool:
    value = gradient.site.key(gradient.slot.value)
    return value in listing.values and listing.first(value) != value


def _is_part(listing: Listing, gradient: Key, whole: Key) -> bool:
    """Whether it has as many elements as the `whole`, and others, on the ranks that have that.

    What another stage of a pipeline gives back is sent to the whole, and judged by itself.
    """
    one, other = listing.record(gradient), listing.record(whole)
    known = content_of(one), content_of(other)
    here, there = ({r.rank for r in listing.values[key]} for key in (gradient, whole))
    is_other = None not in known and known[0] != known[1]
    return one.shape == other.shape and is_other and here == there
