"""Pairs of tensors that effects have of their own, beside those of ops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dumpcmp.align.counting import Counting
from dumpcmp.align.listing import Listing
from dumpcmp.align.pairing import with_repeats
from dumpcmp.comparing.side import Side
from dumpcmp.comparing.step_effects import steps_together
from dumpcmp.comparing.tree_differences import (
    LeafDifference,
    NumberRule,
    TreeComparison,
    compare_trees,
)
from dumpcmp.nouns.effects import Effect, EffectLeaf, tree_of
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.row import Pair, PairedBy

_RETURNED = (Effect.RESULT.op, Effect.YIELDED.op)


def with_effect_values(
    pairs: Sequence[Pair], golden: Side, target: Side, counting: Counting
) -> tuple[list[Pair], Side, Side]:
    """`pairs`, and those of tensors that effects have of their own; the sides list these, too."""
    more = list(_value_pairs(golden, target, counting))
    if not more:
        return list(pairs), golden, target
    golden, target = _listing_effects(golden), _listing_effects(target)
    return with_repeats([*pairs, *more], golden.listing, target.listing), golden, target


def _listing_effects(side: Side) -> Side:
    own = side.listing
    return replace(side, listing=Listing({**own.values, **side.effect_values}, own.calls,
                                         own.num_ranks))  # fmt: skip


def _value_pairs(golden: Side, target: Side, counting: Counting) -> Iterator[Pair]:
    if not golden.effect_values and not target.effect_values:
        return
    ours = {**golden.listing.values, **golden.effect_values}
    theirs = {**target.listing.values, **target.effect_values}
    for step in steps_together(golden, target, counting):
        for named in step.named if step.is_paired else ():
            one, other = step.of(named)
            if named[0] == Effect.STATE.op:
                continue  # which is a step of weights by itself
            if step.is_split and named[0] != Effect.OPTIMIZER.op:
                continue  # of another microbatch, or of the whole
            if not one or not other:
                continue
            found = _as_the_lowest_rank_tells(one, other)
            for leaf, partner in found.tensors:
                if not leaf.slot or not partner.slot:
                    continue
                pair = Pair(_key(one, leaf), _key(other, partner), PairedBy.KEY)
                is_own = "root" not in (leaf.value, partner.value) or leaf.value != partner.value
                if is_own and pair.golden in ours and pair.target in theirs:
                    yield pair
            if named[0] in _RETURNED:
                yield from _alone(found.alone, one, other, golden, target)


def _as_the_lowest_rank_tells(
    golden: Mapping[int, Call], target: Mapping[int, Call]
) -> TreeComparison:
    ours, theirs = (next(iter(calls.values())) for calls in (golden, target))
    return compare_trees(tree_of(ours), tree_of(theirs), NumberRule())


def _alone(
    left: Iterable[LeafDifference],
    ours: Mapping[int, Call], theirs: Mapping[int, Call], golden: Side, target: Side,
) -> Iterator[Pair]:  # fmt: skip
    """Tensors that one side alone returns, in what no call of the root lists."""
    for one in left:
        leaf, calls, side = (
            (one.golden, ours, golden) if one.golden is not None else (one.target, theirs, target)
        )
        if leaf is None or leaf.value != "slot":
            continue
        key = _key(calls, leaf)
        if key in side.effect_values:
            yield Pair(key, None) if one.golden is not None else Pair(None, key)


def _key(calls: Mapping[int, Call], leaf: EffectLeaf) -> Key:
    """The value that a leaf of an effect is: of the effect itself, or of the root."""
    call = next(iter(calls.values()))
    if leaf.value == "root":
        return Key(call.model, call.step, ROOT, 0, leaf.slot)
    return call.site.key(leaf.slot)
