"""Finds for every value of either run its partner in the other, from what the archives tell.

Calls find each other first, in passes, each over what the former left; then their slots do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dumpcmp.align.beside import each_once, laid_beside, left_values, paired_values
from dumpcmp.align.counting import AS_COUNTED, Counting
from dumpcmp.align.gradient_terms import without_terms
from dumpcmp.align.kindred import by_order
from dumpcmp.align.likening import join_alike
from dumpcmp.align.listing import Listing
from dumpcmp.align.merging import merged_pairs, with_merged
from dumpcmp.align.mesh.deliveries import without_collectives
from dumpcmp.align.namesakes import by_key
from dumpcmp.align.naming import by_names
from dumpcmp.align.partners import Partners
from dumpcmp.align.passes import by_provenance, with_collectives
from dumpcmp.align.renaming import Renaming
from dumpcmp.align.sweeping import Sweep
from dumpcmp.align.turning import Turns
from dumpcmp.align.unwritten import unwritten
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.row import Pair, Unwritten

_ROUNDS = 4  # by order and by flow in turn, while either finds partners


def pair_values(
    golden: Listing,
    target: Listing,
    renaming: Renaming | None = None,
    counting: Counting = AS_COUNTED,
    turns: Turns | None = None,
) -> list[Pair]:
    """Pair the values of both runs, in order of execution; none is left out.

    `counting` says which steps belong together, and `turns`, of two implementations, in which order
    the dims of values lie. The collectives of partitioned runs stand beside what they moved.
    """
    if golden.num_ranks == target.num_ranks == 1:
        is_plain = turns is None and renaming in (None, Renaming())
        pairs = by_key(golden, target, counting) if is_plain else []
        pairs = pairs or _pair_model(golden, target, renaming or Renaming(), counting, turns)
    else:
        ours, theirs = without_collectives(golden), without_collectives(target)
        pairs = _pair_model(ours, theirs, renaming or Renaming(), counting)
        pairs = with_collectives(pairs, golden, target)
    return with_repeats(list(_with_unwritten(pairs, golden, target)), golden, target)


def _with_unwritten(pairs: Iterable[Pair], golden: Listing, target: Listing) -> Iterator[Pair]:
    """`pairs`, which know whether they are memory that nobody has written."""
    ours, theirs = unwritten(golden), unwritten(target)
    for pair in pairs:
        one = ours.get(golden.first(pair.golden)) if pair.golden else None
        other = theirs.get(target.first(pair.target)) if pair.target else None
        amount = one or other or Unwritten.NO
        yield replace(pair, unwritten=amount) if amount else pair


def _pair_model(
    golden: Listing,
    target: Listing,
    renaming: Renaming,
    counting: Counting,
    turns: Turns | None = None,
) -> list[Pair]:
    """Pair what the model computed.

    What only frames a value that is paired, such as a wrapper, is laid beside its partner once
    more, and pieces each beside their whole: every value is in a Pair, and of each Pair one side
    is in no other.
    """
    sides = Partners(golden, target, renaming, in_golden_terms(golden, target, counting), turns)
    pairs = each_once(_by_flow(sides) if sides.is_whole else by_names(sides))
    if any(call.kernel for call in target.calls.values()):
        pairs = list(by_provenance(pairs, golden, target, sides.kernel_of))
    return _in_order(sides, [turned_pair(sides, pair) for pair in pairs] if turns else pairs)


def turned_pair(sides: Partners, pair: Pair) -> Pair:
    """`pair`, which knows in which order the target's dims are golden's."""
    if pair.golden is None or pair.target is None or pair.golden_part or pair.target_part:
        return pair
    turn = sides.turn(pair.golden, pair.target)
    return pair if turn is None else replace(pair, turn=turn)


def _by_flow(sides: Partners) -> list[Pair]:
    """Pair by what calls take and give, then by names and order; and values that calls leave."""
    merged = merged_pairs(sides)
    sweep = Sweep.of(sides, merged)
    sweep.run()
    sweep.pair_modules()
    if sweep.join_equal():
        sweep.run()
    for _ in range(_ROUNDS):
        found = len(sides.taken)
        by_order(sides, sweep)
        if len(sides.taken) == found or not sweep.run():
            break
    if sides.turns is not None and join_alike(sweep, sides.turns):
        sweep.run()
        by_order(sides, sweep)
    sweep.settle()
    pairs = with_merged(merged, [*paired_values(sides, sweep), *left_values(sides)])
    pairs = list(_without_ones(sides, sweep, pairs))
    return laid_beside(sweep, list(without_terms(sides, pairs)))


def _without_ones(sides: Partners, sweep: Sweep, pairs: Sequence[Pair]) -> Iterator[Pair]:
    """`pairs`, in which results inside of modules stand alone that differ by dims of one element.

    What is made of them tells whether that matters. What a module gives out keeps its shape, and so
    does what nothing is made of.
    """
    found = [pair for pair in pairs if _differ_by_ones(sides, sweep, pair)]
    taken = [_taken(side) if found else set() for side in (sides.golden, sides.target)]
    alone = {pair for pair in found if pair.golden in taken[0] and pair.target in taken[1]}
    for pair in pairs:
        if pair in alone:
            yield from (Pair(pair.golden, None), Pair(None, pair.target))
        else:
            yield pair


def _taken(listing: Listing) -> set[Key | None]:
    """The values that calls take."""
    return {first for key, first in listing.links.items() if key.slot.is_input}


def _differ_by_ones(sides: Partners, sweep: Sweep, pair: Pair) -> bool:
    golden, target = pair.golden, pair.target
    if golden is None or target is None or not golden.slot.is_output or golden.op.is_module:
        return False
    ours, theirs = sides.golden.record(golden).shape, sides.target.record(target).shape
    if ours == theirs or [n for n in ours if n > 1] != [n for n in theirs if n > 1]:
        return False
    inside = sweep.ours.strand(golden), sweep.theirs.strand(target)
    return all(strand not in left for strand, left in zip(inside, sweep.leaving, strict=True))


def paired_models(golden: Iterable[str], target: Iterable[str]) -> dict[str, str]:
    """Golden's name of each model of the target; one that is left on each side pairs."""
    ours, theirs = dict.fromkeys(golden), dict.fromkeys(target)
    names = {model: model for model in theirs}
    alone = [m for m in ours if m not in theirs], [m for m in theirs if m not in ours]
    if len(alone[0]) == len(alone[1]) == 1:
        names[alone[1][0]] = alone[0][0]
    return names


def models_in_golden_terms(golden: Listing, target: Listing) -> dict[str, str]:
    """Golden's name of each model of the target."""
    return paired_models(*((s.model for s in side.sites) for side in (golden, target)))


def in_golden_terms(golden: Listing, target: Listing, counting: Counting) -> dict[Site, Site]:
    """The target's calls by golden's names of models and steps."""
    names = models_in_golden_terms(golden, target)
    steps: dict[tuple[str, int], tuple[str, int]] = {}
    for model, step in dict.fromkeys((site.model, site.step) for site in target.sites):
        steps[model, step] = names[model], counting.in_golden_terms(names[model], step)
    return {site: Site(*steps[site[:2]], *site[2:]) for site in target.sites}


def _in_order(sides: Partners, pairs: Sequence[Pair]) -> list[Pair]:
    """`pairs` in golden's execution order; what only the target has after what it followed."""
    position = {site: i for i, site in enumerate(sides.golden.sites)}
    names = dict.fromkeys(site.model for site in (*sides.golden.sites, *sides.terms.values()))
    models = {model: i for i, model in enumerate(names)}
    partner = {target: golden for golden, target in sides.partner.items()}
    follows: dict[Site, tuple[int, int]] = {}
    last: dict[tuple[str, int], int] = {}
    for n, (site, terms) in enumerate(sides.terms.items()):
        step = terms.model, terms.step
        if site in partner:
            last[step] = max(last.get(step, -1), position[partner[site]])
        follows[site] = last.get(step, -1), n
    slots = {
        key: i for listing in (sides.golden, sides.target) for i, key in enumerate(listing.values)
    }

    def where(pair: Pair) -> tuple[int, int, int, int, int]:
        site = pair.key.site
        if pair.golden:
            return models[site.model], site.step, position[site], -1, slots[pair.key]
        terms = sides.terms[site]
        return models[terms.model], terms.step, *follows[site], slots[pair.key]

    return sorted(pairs, key=where)


def with_repeats(pairs: Sequence[Pair], golden: Listing, target: Listing) -> list[Pair]:
    """`pairs`, which know where they first appeared, if both sides had the value before."""
    known: dict[tuple[Key | None, Key | None], Pair] = {}
    for pair in pairs:  # a value may stand beside several
        known.setdefault((pair.golden, pair.target), pair)
    first: dict[Pair, Pair] = {}
    for pair in pairs:
        before = golden.links.get(pair.golden) if pair.golden else None
        beside = target.links.get(pair.target) if pair.target else None
        found = known.get((before, beside)) if before and beside else None
        if found is not None and found is not pair and _held_alike(pair, found, target):
            first[pair] = found
    return [
        pair.repeating(first[pair]) if pair in first and first[pair] not in first else pair
        for pair in pairs
    ]


def _held_alike(pair: Pair, first: Pair, target: Listing) -> bool:
    """Whether the same ranks have a value of the target in both places.

    An output of a split may be one expert's rows on one rank and another's on the next.
    """
    if target.num_ranks == 1 or not pair.target or not first.target:
        return True
    here, there = (target.values[key] for key in (pair.target, first.target))
    return len(here) == len(there)
