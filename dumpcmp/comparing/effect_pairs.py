"""Pairs of tensors that effects have of their own, beside those of ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dumpcmp.align.counting import Counting
from dumpcmp.align.listing import Listing
from dumpcmp.align.pairing import with_repeats
from dumpcmp.comparing.side import Side
from dumpcmp.comparing.step_effects import steps_together
from dumpcmp.comparing.tree_differences import NumberRule, compare_trees
from dumpcmp.nouns.effects import Effect, EffectLeaf, tree_of
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.row import Pair, PairedBy


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
            for leaf, partner in _tensors(one, other):
                pair = Pair(_key(one, leaf), _key(other, partner), PairedBy.KEY)
                is_own = "root" not in (leaf.value, partner.value) or leaf.value != partner.value
                if is_own and pair.golden in ours and pair.target in theirs:
                    yield pair


def _tensors(
    golden: Mapping[int, Call], target: Mapping[int, Call]
) -> Iterator[tuple[EffectLeaf, EffectLeaf]]:
    """The tensors of one effect that both sides have, as the lowest rank tells."""
    ours, theirs = next(iter(golden.values()), None), next(iter(target.values()), None)
    if ours is not None and theirs is not None:
        found = compare_trees(tree_of(ours), tree_of(theirs), NumberRule()).tensors
        yield from (both for both in found if both[0].slot and both[1].slot)


def _key(calls: Mapping[int, Call], leaf: EffectLeaf) -> Key:
    """The value that a leaf of an effect is: of the effect itself, or of the root."""
    call = next(iter(calls.values()))
    if leaf.value == "root":
        return Key(call.model, call.step, ROOT, 0, leaf.slot)
    return call.site.key(leaf.slot)
