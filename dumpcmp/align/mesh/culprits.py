"""Names the ranks behind a difference: who holds what golden does not have, and what it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dumpcmp.align.mesh.reduce import distance, products, reduce_terms
from dumpcmp.align.mesh.solve import Question, cell_distance, hypotheses
from dumpcmp.align.mesh.unshard import Load, Plan
from dumpcmp.nouns.dtypes import Kind
from dumpcmp.nouns.value import Value

_SLACK = 3.0  # a region's error may be this much larger than that of the whole value
_FACTORS = tuple(n for n in range(2, 65)) + tuple(1 / n for n in range(2, 65))


@dataclass(frozen=True, slots=True)
class Finding:
    """One rank's shard against golden's region for it."""

    rank: int
    cell: int
    position: int  # in the sequence of shards
    rel_l2: float
    fits: bool


def findings(golden: Value, plan: Plan, load: Load, limit: float) -> list[Finding]:
    """How each rank's shard compares with golden; nothing for partial terms."""
    found: list[Finding] = []
    if any(len(cell.terms) > 1 for cell in plan.cells) or plan.divisor > 1:
        return found
    for number, cell in enumerate(plan.cells):
        for position in cell.terms[0]:
            error = cell_distance(golden, load(position), plan, number).rel_l2
            fits = error <= _SLACK * limit
            found.append(Finding(plan.ranks[position], number, position, error, fits))
    return found


def likeliest(question: Question, load: Load) -> Plan | None:
    """The layout under which some ranks hold just what golden has: the others are then wrong.

    A shard that agrees with golden's region does so by no accident, unless it is tiny.
    """
    best: tuple[int, Plan] | None = None
    for plan in hypotheses(question, load):
        if _is_tiny(question, plan):
            continue
        found = findings(question.golden, plan, load, question.limit)
        num_fitting = sum(one.fits for one in found)
        if not num_fitting and _owners(question.golden, plan, load, question.limit, found):
            num_fitting = 1
        if num_fitting > (best[0] if best else 0):
            best = num_fitting, plan
    return best[1] if best else None


def describe(
    golden: Value, target: Value, plan: Plan | None, load: Load | None, limit: float
) -> str:
    """What the difference looks like, in words; empty where nothing can be said."""
    said = [*_about_whole(golden, target, limit)]
    if plan is not None and load is not None and len(plan.ranks) > 1:
        said += _about_ranks(golden, plan, load, limit)
    return "; ".join(said)


def _about_whole(golden: Value, target: Value, limit: float) -> Iterator[str]:
    if golden.dtype.kind is not Kind.FLOAT or golden.shape != target.shape:
        return
    ours, both, theirs = products(golden, target)
    ratio = both / ours if ours else 1.0
    factor = min(_FACTORS, key=lambda n: abs(n - ratio))
    apart = theirs - 2 * factor * both + factor**2 * ours
    if math.isfinite(apart) and apart <= (_SLACK * limit * factor) ** 2 * ours:
        shown = f"{factor:.0f}" if factor > 1 else f"1/{1 / factor:.0f}"
        yield f"the target is {shown} times golden: a reduction too many, or a mean left out"


def _about_ranks(golden: Value, plan: Plan, load: Load, limit: float) -> Iterator[str]:
    found = findings(golden, plan, load, limit)
    wrong = [one for one in found if not one.fits]
    if not wrong:
        return
    owners = _owners(golden, plan, load, limit, found)
    for rank, owner in owners.items():
        yield f"rank {rank} holds the shard of rank {owner}"
    worst = {one.rank: one.rel_l2 for one in wrong if one.rank not in owners}
    if worst and (len(wrong) < len(found) or len(plan.cells) > 1):
        listed = ", ".join(f"rank {rank} (rel_l2 {error:.2g})" for rank, error in worst.items())
        right = [str(one.rank) for one in found if one.fits]
        replica = "REPLICA: " if len(plan.cells) == 1 else ""
        agree = f"; right: rank{'s' * (len(right) > 1)} {', '.join(right)}" if right else ""
        yield f"{replica}wrong: {listed}{agree}"
    if len(plan.cells) == 1 and _sum_fits(golden, plan, load, limit):
        yield "the sum over the ranks is golden's value: a reduction is missing"


def _sum_fits(golden: Value, plan: Plan, load: Load, limit: float) -> bool:
    positions = plan.cells[0].terms[0]
    if golden.dtype.kind is not Kind.FLOAT or len(positions) < 2:
        return False
    total = reduce_terms((load(position) for position in positions), "sum", 1)
    return total.shape == golden.shape and distance(golden, total).rel_l2 <= _SLACK * limit


def _owners(
    golden: Value, plan: Plan, load: Load, limit: float, found: Sequence[Finding]
) -> dict[int, int]:
    """For each wrong rank that holds another rank's shard: whose it is."""
    owners = {}
    for one in found:
        if one.fits:
            continue
        mine = load(one.position)
        for other in found:
            if other.cell == one.cell or load(other.position).shape != mine.shape:
                continue
            if cell_distance(golden, mine, plan, other.cell).rel_l2 <= _SLACK * limit:
                owners[one.rank] = other.rank
                break
    return owners


def _is_tiny(question: Question, plan: Plan) -> bool:
    return question.golden.numel < 4 * max(1, len(plan.cells))
