"""Summaries of whole values: as an archive holds them, or added up from those of shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dumpcmp.align.places import held_indices
from dumpcmp.align.regions import Shard
from dumpcmp.align.unshard import Cell, Plan, plan_unshard
from dumpcmp.archive.reader import Archive
from dumpcmp.errors import LayoutError
from dumpcmp.layouts import parse_layout
from dumpcmp.measure.packing import unpack
from dumpcmp.measure.sketch import Place
from dumpcmp.measure.summary import DEFAULT, Recipe, Summary, join, join_partial, summarise
from dumpcmp.record import Kept, Record

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


def whole_summary(archive: Archive, records: tuple[Record, ...]) -> Summary:
    """The Summary of a value, whatever ranks hold shards, replicas or partial sums of it."""
    known = next(record for record in records if record.kept is Kept.SUMMARY)
    recipe = load_summary(archive, known).recipe
    held = [load_summary(archive, record, recipe) for record in records]
    if len(held) == 1 or _replicas(held):
        return held[0]
    shards = [
        Shard(record.rank, record.shape, parse_layout(record.layout), summary.digest)
        for record, summary in zip(records, held, strict=True)
    ]
    return joined(plan_unshard(shards), held.__getitem__)


def _replicas(held: list[Summary]) -> bool:
    first = held[0]
    return all(s.whole == first.shape == s.shape for s in held) and (
        len({s.digest for s in held}) == 1 and bool(first.digest)
    )


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
