"""What weights tell of gradients before them: terms that were added up gave golden's weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dumpcmp.align.listing import Listing
from dumpcmp.judge.tolerances import SAME_TIMES
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.row import Following, Measured, OpenSum, Pair


def with_updates(
    following: Following,
    pairs: Sequence[Pair],
    measured: Mapping[Pair, Measured],
    golden: Listing,
) -> Following:
    """`following`, in which weights follow the gradients that they were updated by.

    This is for gradients of which each rank has a term and nobody saw the sum. Where no step
    comes after, and the terms are added up as in the step before, the weight after that one.
    """
    terms = {p.target: one.terms for p, one in measured.items() if p.target and one.terms}
    if not terms:
        return following
    weights = {p.target: p for p in pairs if p.golden and p.target and p.target.slot.is_weight}
    told = {
        pair: found
        for pair in following.made
        if pair.target in terms and (found := _telling(pair.target, weights, terms, golden))
    }
    made = {pair: [told[pair]] if pair in told else after for pair, after in following.made.items()}
    return following._replace(made=made, ends=following.ends - told.keys())


def _telling(
    gradient: Key, weights: Mapping[Key, Pair], terms: Mapping[Key, OpenSum], golden: Listing
) -> Pair | None:
    """The weight that shows what became of a gradient."""
    after = _updated(gradient, weights, golden)
    before = replace(gradient, step=gradient.step - 1)
    is_alike = before in terms and _are_alike(terms[before], terms[gradient])
    if after is None and is_alike and _after(gradient) not in weights:
        return _updated(before, weights, golden)
    return after


def _are_alike(one: OpenSum, other: OpenSum) -> bool:
    """Whether the same collective makes the same of both, but for rounding."""
    same = math.isclose(one.times, other.times, rel_tol=SAME_TIMES)
    return bool(one.by) and one.by == other.by and same


def _updated(gradient: Key, weights: Mapping[Key, Pair], golden: Listing) -> Pair | None:
    """The weight of the next step, if golden's is another one there."""
    now, after = weights.get(_weight(gradient)), weights.get(_after(gradient))
    if now is None or after is None or now.golden is None or after.golden is None:
        return None
    digests = [golden.record(pair.golden).digest for pair in (now, after) if pair.golden]
    return after if digests[0] != digests[1] else None


def _weight(gradient: Key) -> Key:
    return replace(gradient, slot=gradient.slot.value)


def _after(gradient: Key) -> Key:
    return replace(_weight(gradient), step=gradient.step + 1)
