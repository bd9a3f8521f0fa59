"""Finds what a quantised run rounded to levels that are declared: weights, and what it computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dumpcmp.align.listing import Listing
from dumpcmp.align.synonyms import keeps_elements
from dumpcmp.comparing.side import Side
from dumpcmp.judge.tolerances import QUANTISED
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.leaf import LeafFinding, LeafKind
from dumpcmp.nouns.levels import Quantised
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import Pair
from dumpcmp.shadows.declared_levels import are_codes as stand_for
from dumpcmp.shadows.declared_levels import quantised

_WEIGHTS = (LeafKind.PARAMETER, LeafKind.BUFFER)


def quantised_weights(
    leaves: Mapping[Pair, LeafFinding], golden: Side, target: Side, words: Iterable[str]
) -> dict[Pair, Replay]:
    """The weights among `leaves` that are golden's but for levels that are declared."""
    words = QUANTISED.keys() & set(words)
    found = {}
    for pair, leaf in leaves.items() if words else ():
        if leaf.kind in _WEIGHTS and (one := _of_pair(pair, golden, target, words)):
            found[pair] = Replay(introduced=one.rel_l2, gain=one.gain, levels=one.said)
    return found


def codes_among(
    pairs: Iterable[Pair], golden: Listing, target: Listing, words: Iterable[str]
) -> frozenset[Pair]:
    """The weights of which the target has codes and golden numbers, if levels are declared."""
    if not QUANTISED.keys() & set(words):
        return frozenset()
    return frozenset(pair for pair in pairs if are_codes(pair, golden, target))


def are_codes(pair: Pair, golden: Listing, target: Listing) -> bool:
    """Whether the target has integers, or floats of 8 bits, where golden has a weight's numbers.

    Of what a model computes they are no codes but another result.
    """
    if pair.golden is None or pair.target is None:
        return False
    ours, theirs = golden.record(pair.golden).dtype, target.record(pair.target).dtype
    return stand_for(ours, theirs) and _is_weight(pair.golden, golden)


def _is_weight(key: Key, golden: Listing) -> bool:
    """Whether a value is a weight, or one that is laid out otherwise."""
    first = golden.first(key)
    if first.slot.is_weight or not first.slot.is_output or not keeps_elements(first.op.function):
        return first.slot.is_weight
    given = [each for each in golden.sites[first.site] if each.slot.is_input]
    return bool(given) and all(_is_weight(each, golden) for each in given)


def _of_pair(pair: Pair, golden: Side, target: Side, words: Iterable[str]) -> Quantised | None:
    if pair.golden is None or pair.target is None:
        return None
    try:
        ours, theirs = golden.load(pair.golden), target.load(pair.target)
    except DumpcmpError:  # which the row of the value tells
        return None
    return None if ours is None or theirs is None else quantised(ours, theirs, words)
