"""Names the ranks behind a difference: who holds what golden does not have, and what it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dumpcmp.align.mesh.solve import (
    FEW,
    LOOKED_AT,
    Question,
    hypotheses,
    is_much,
    random_weights,
)
from dumpcmp.align.mesh.unshard import Plan, distance, reduce_terms, slices
from dumpcmp.judge.tolerances import ACCIDENT, REGION
from dumpcmp.nouns.layouts import ReduceOp
from dumpcmp.nouns.spoken import counted, ranks_named
from dumpcmp.nouns.value import Kind, Value, widen

_SINGLY = 4  # ranks that are told of one by one
_DOZEN = 12  # integers of a rank that are golden's by no accident
_FACTORS = (*range(2, 65), *(1 / n for n in range(2, 65)))  # sizes of meshes, and means over them


@dataclass(frozen=True, slots=True)
class Fit:
    """One rank's shard against golden's region for it."""

    rank: int
    tile: int
    position: int  # in the sequence of shards
    rel_l2: float
    fits: bool


def likeliest(question: Question) -> Plan | None:
    """The layout under which some ranks hold just what golden has: the others are then wrong.

    A shard that agrees with golden's region does so by no accident, unless it is tiny or has
    the same few numbers everywhere.
    """
    best, most = None, 0
    if not question.is_telling:
        return None
    enough = _too_far(question)
    for plan in hypotheses(question):
        if question.golden.numel < ACCIDENT * max(1, len(plan.tiles)):
            continue
        found = _fits(question, plan, enough)
        num_fitting = sum(one.fits for one in found)
        if not num_fitting and _owners(question, plan, found, enough):
            num_fitting = 1
        if num_fitting > most:
            best, most = plan, num_fitting
        if 2 * most > len(question.shards) or is_much(most, len(question.shards)):
            break  # no other layout is as likely
    return best


def some_fit(question: Question, plan: Plan) -> bool:
    """Whether any rank holds just what golden has there, by a layout that its likes have.

    Integers, of which a few may agree by chance, are many enough where they have a dozen places.
    """
    enough = question.golden.numel >= _DOZEN * max(1, len(plan.tiles))
    return enough and any(one.fits for one in _fits(question, plan))


def _too_far(question: Question) -> float:
    """A squared error with which a shard fits no region, since no region is more than golden."""
    norm = distance(question.golden, question.golden).norm
    return 2 * norm * (REGION * question.limit) ** 2


def about_whole(golden: Value, target: Value, gain: float, limit: float) -> Iterator[str]:
    """Whether `target`, whose gain over `golden` was measured, is a multiple of it."""
    if golden.dtype.kind is not Kind.FLOAT:
        return
    factor = min(_FACTORS, key=lambda n: abs(n - 1 - gain))
    near = REGION * limit
    if abs(factor - 1 - gain) <= near * factor and distance(golden, target, factor).rel_l2 <= near:
        shown = f"{factor:.0f}" if factor > 1 else f"1/{1 / factor:.0f}"
        yield f"the target is {shown} times golden: a reduction too many, or a mean left out"


def about_ranks(question: Question, plan: Plan) -> Iterator[str]:
    """Which ranks are wrong and which right, and what the wrong ones hold instead."""
    found = _fits(question, plan)
    wrong = [one for one in found if not one.fits]
    if not wrong:
        return
    owners = _owners(question, plan, found)
    places = plan.places()
    for position, owner in list(owners.items())[:_SINGLY]:
        yield f"{places[position]} holds the shard of {places[owner]}"
    if len(owners) > _SINGLY:
        yield f"and {counted(len(owners) - _SINGLY, 'more holds', 'more hold')} others' shards"
    worst = [one for one in wrong if one.position not in owners]
    if worst and (len(wrong) < len(found) or len(plan.tiles) > 1):
        replica = "REPLICA: " if len(plan.tiles) == 1 else ""
        yield replica + _told_apart(worst, [one for one in found if one.fits], places)
    if len(plan.tiles) == 1 and _sum_fits(question, plan):
        yield "the sum over the ranks is golden's value: a reduction is missing"


def errors_of_ranks(question: Question, plan: Plan) -> tuple[tuple[int, float], ...]:
    """The rel_l2 of each rank's shard against golden's region for it; none of partial terms."""
    return tuple((one.rank, one.rel_l2) for one in _fits(question, plan))


def _told_apart(wrong: Sequence[Fit], right: Sequence[Fit], places: Sequence[str]) -> str:
    """Who is wrong, and who is right: ranks, or microbatches where a rank has some of both."""
    both = {one.rank for one in wrong} & {one.rank for one in right}
    if not both or len(wrong) > _SINGLY:
        agree = f"; right: {ranks_named(one.rank for one in right)}" if right else ""
        return f"wrong: {_listed({one.rank: one.rel_l2 for one in wrong})}{agree}"
    return f"wrong: {_erring(wrong, places)}; right: {_placed(right, places)}"


def _erring(wrong: Sequence[Fit], places: Sequence[str]) -> str:
    return ", ".join(f"{places[one.position]} (rel_l2 {one.rel_l2:.2g})" for one in wrong)


def _placed(right: Sequence[Fit], places: Sequence[str]) -> str:
    agree = ", ".join(places[one.position] for one in right[:_SINGLY])
    return f"{agree}{', …' * (len(right) > _SINGLY)}"


def _listed(worst: Mapping[int, float]) -> str:
    """Wrong ranks with their errors; many in a line."""
    if len(worst) <= _SINGLY:
        return ", ".join(f"rank {rank} (rel_l2 {error:.2g})" for rank, error in worst.items())
    return f"{ranks_named(worst)} (rel_l2 up to {max(worst.values()):.2g})"


def _fits(question: Question, plan: Plan, enough: float = math.inf) -> list[Fit]:
    """How each rank's shard compares with golden; nothing for partial terms, and for padding."""
    found: list[Fit] = []
    for number, tile in enumerate(() if plan.adds_up else plan.tiles):
        if not any(question.golden.bits[there].size for there, _ in slices(tile.region)):
            continue
        for position in tile.terms[0]:
            error = question.distance(plan, position, number, enough)
            fits = error <= REGION * question.limit
            found.append(Fit(plan.shards[position].rank, number, position, error, fits))
    return found


def _sum_fits(question: Question, plan: Plan) -> bool:
    positions = plan.tiles[0].terms[0]
    if question.golden.dtype.kind is not Kind.FLOAT or len(positions) < 2:
        return False
    total = reduce_terms([question.load(position) for position in positions], ReduceOp.SUM)
    if total.shape != question.golden.shape:
        return False
    return distance(question.golden, total).rel_l2 <= REGION * question.limit


def _owners(
    question: Question, plan: Plan, found: Sequence[Fit], enough: float = math.inf
) -> dict[int, int]:
    """For each wrong shard that is another one's: the positions of both."""
    owners: dict[int, int] = {}
    wrong = [one for one in found if not one.fits]
    likely = _nearest(question, plan, wrong, found) if len(found) > FEW else {}
    for one in wrong:
        others = likely.get(one.position, found)
        for other in (other for other in others if other.tile != one.tile):
            if plan.shards[other.position].shape != plan.shards[one.position].shape:
                continue
            error = question.distance(plan, one.position, other.tile, enough)
            if error <= REGION * question.limit:
                owners[one.position] = other.position
                break
    return owners


def _nearest(
    question: Question, plan: Plan, wrong: Sequence[Fit], found: Sequence[Fit]
) -> dict[int, list[Fit]]:
    """Of many ranks, for each wrong shard the few whose regions it may hold, by one number each.

    Each shard against each region would be the square of them.
    """
    regions = [_signature(question.golden, plan, other) for other in found]
    order = np.argsort(regions, kind="stable")
    known = np.asarray(regions)[order]
    likely = {}
    for one in wrong:
        mine = _signature_of(question.load(one.position))
        at = int(np.searchsorted(known, mine))
        likely[one.position] = [found[i] for i in order[max(0, at - 2) : at + 2]]
    return likely


def _signature(golden: Value, plan: Plan, fit: Fit) -> float:
    """One number for the region of golden that a shard should hold."""
    block = np.zeros(plan.shards[fit.position].shape, golden.bits.dtype)
    for there, here in slices(plan.tiles[fit.tile].region):
        block[here] = golden.bits[there]
    return _signature_of(Value(golden.dtype, block))


def _signature_of(value: Value) -> float:
    some = widen(value.bits.reshape(-1)[:LOOKED_AT], value.dtype).astype(np.complex128)
    return float(np.abs(some @ random_weights(some.size)))
