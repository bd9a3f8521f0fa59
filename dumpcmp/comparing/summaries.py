"""Summaries of whole values: as an archive holds them, or added up from those of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from dumpcmp.align.assemble import Held
from dumpcmp.align.places import held_indices
from dumpcmp.align.unshard import Cell, Disagreement, Plan, plan_unshard, unshard
from dumpcmp.archive.reader import Archive
from dumpcmp.errors import LayoutError
from dumpcmp.measure.estimates import estimate, worst_rows
from dumpcmp.measure.packing import unpack
from dumpcmp.measure.sketch import Place
from dumpcmp.measure.summary import DEFAULT, Recipe, Summary, join, join_partial, summarise
from dumpcmp.record import Kept, Record
from dumpcmp.tensors import Value

_CLEAR = 2.0  # how far a segment must stand out to be named

Load = Callable[[int], Summary]  # the Summary of the shard at a position


def is_summarised(records: tuple[Record, ...]) -> bool:
    """Whether Summaries are all that is left of a value."""
    return any(record.kept is Kept.SUMMARY for record in records)


def load_summary(archive: Archive, record: Record, recipe: Recipe = DEFAULT) -> Summary:
    """The Summary that stands for `record`; taken by `recipe` where its elements are there."""
    if record.stored is None:
        held = held_indices(record.layout, record.shape)
        return summarise(archive.load(record), recipe, Place(*held) if held else None)
    numbers = archive.load(record).bits.astype(np.float64, copy=False)
    return unpack(record.stored, numbers, record.dtype, record.shape)


@dataclass(frozen=True, slots=True)
class Summed:
    """The Summary of a whole value, and the replicas that were not the same on the way."""

    summary: Summary
    disagreements: tuple[Disagreement, ...] = ()


def whole_summary(archive: Archive, held: Held) -> Summed:
    """The Summary of a value, whatever ranks hold shards, replicas or partial sums of it."""
    known = next(record for record in held.records if record.kept is Kept.SUMMARY)
    recipe = load_summary(archive, known).recipe
    found = [load_summary(archive, record, recipe) for record in held.records]
    if len(found) == 1 and found[0].whole[: len(found[0].shape)] == found[0].shape:
        return Summed(found[0])
    if _are_replicas(found):
        return Summed(found[0])
    plan = plan_unshard(held.shards())
    return Summed(joined(plan, found.__getitem__), tuple(_disagreements(plan, found)))


def _are_replicas(held: list[Summary]) -> bool:
    first = held[0]
    same = {(s.digest, s.whole, s.shape) for s in held}
    return len(same) == 1 and bool(first.digest) and first.whole[: len(first.shape)] == first.shape


def whole_elements(held: Held) -> Value:
    """The elements of a value that is not summarised, by what its layouts say."""
    first = held.records[0]
    alike = len({record.digest for record in held.records}) == 1 and not first.layout
    if (len(held.records) == 1 and not first.layout) or alike:
        return held.load(first)
    return unshard(plan_unshard(held.shards()), held.loader()).value


def _disagreements(plan: Plan, held: list[Summary]) -> Iterator[Disagreement]:
    for first, *others in (replicas for cell in plan.cells for replicas in cell.terms):
        for other in others:
            far = estimate(held[first], held[other])
            if not far.equal and far.rel_l2:
                ranks = (plan.ranks[first], plan.ranks[other])
                yield Disagreement(ranks, far.rel_l2, far.max_abs_diff)


def said_of_rows(golden: Summary, target: Summary) -> str:
    """Which tokens differ most, where segments tell them apart from the others."""
    found = worst_rows(golden, target)
    if found is None or found[2] < _CLEAR:
        return ""
    first, last, excess = found
    return f"mostly in rows {first} to {last}, {excess:.3g} times the median of the segments"


def joined(plan: Plan, load: Load) -> Summary:
    """Follow `plan` as unsharding does, with sketches that add up in the place of elements."""
    if plan.missing:
        raise LayoutError(f"shards are missing: {', '.join(plan.missing)}")
    whole = join([_term(plan, cell, load) for cell in plan.cells], plan.shape)
    if whole.whole != plan.shape:
        raise LayoutError(
            f"the summaries were taken of shards alone, not of their places in {plan.shape}",
            hint="layouts must be known when a partitioned run is compacted; keep it full instead",
        )
    return whole


def _term(plan: Plan, cell: Cell, load: Load) -> Summary:
    """The Summary of one region: the sum of its partial terms, divided where the layout says so."""
    terms = [load(replicas[0]) for replicas in cell.terms]
    if len(terms) > 1 and plan.reduction != "sum":
        raise LayoutError(
            f"summaries of partial terms cannot be reduced by {plan.reduction}",
            hint="keep those ops whole: dumpcmp compact --keep-full",
        )
    total = join_partial(terms) if len(terms) > 1 else terms[0]
    return _divided(total, plan.divisor) if plan.divisor > 1 else total


def _divided(summary: Summary, divisor: int) -> Summary:
    factor = 1 / divisor
    return replace(
        summary,
        min=summary.min * factor,
        max=summary.max * factor,
        sum=summary.sum * factor,
        sum_squares=summary.sum_squares * factor**2,
        digest="",
        sketch=summary.sketch * factor if summary.sketch else None,
        segments=tuple(segment * factor for segment in summary.segments),
    )
