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
    """`pairs`, in which golden's gradient of a value and a term of the target's stand alone."""
    terms = _terms(sides, pairs)
    for pair in pairs:
        if pair.target in terms and pair.both:
            yield from (Pair(pair.golden, None), Pair(None, pair.target))
        else:
            yield pair


def _terms(sides: Partners, pairs: Sequence[Pair]) -> set[Key | None]:
    """The target's gradients that are terms: takers have several where golden has one."""
    whole: dict[Key, Key] = {}
    takers: dict[Key, list[Key]] = defaultdict(list)
    for golden, target in ((pair.golden, pair.target) for pair in pairs):
        if golden is None or target is None or golden.slot.kind != target.slot.kind:
            continue
        if is_at_maker(golden, target) and not _is_copied(sides, golden, target):
            whole[sides.golden.first(golden)] = target
        elif golden.slot.kind in _GRADIENTS:
            takers[sides.golden.first(golden)].append(target)
    found: set[Key | None] = set()
    for first, keys in takers.items():
        contents = {content_of(sides.target.record(key)) for key in keys}
        if first in whole and len(contents) > 1:
            found.update(key for key in keys if _is_part(sides.target, key, whole[first]))
    return found


def _is_copied(sides: Partners, golden: Key, target: Key) -> bool:
    """Whether golden's call gives out what it was given, and the target's something new.

    A cast to the dtype that a value has already is such a call: who takes what it gives takes the
    value itself in golden, and a copy in the target.
    """
    return _is_passed_on(sides.golden, golden) and not _is_passed_on(sides.target, target)


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
