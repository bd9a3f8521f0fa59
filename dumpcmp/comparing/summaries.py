"""Summaries of whole values: as an archive holds them, or added up from those of shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dumpcmp.align.mesh.held import AssemblyError, Held
from dumpcmp.align.mesh.regions import portion_of
from dumpcmp.align.mesh.unshard import Disagreement, Plan, Tile, plan_unshard, unshard
from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing.side import Side
from dumpcmp.judge.tolerances import SEGMENT
from dumpcmp.nouns.errors import DumpcmpError, LayoutError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.value import Value
from dumpcmp.summary.estimates import estimate, worst_rows
from dumpcmp.summary.packing import unpack
from dumpcmp.summary.summary import DEFAULT, Recipe, Summary, join, join_partial, summarise


def load_summary(archive: Archive, record: Record, recipe: Recipe = DEFAULT) -> Summary:
    """The Summary that stands for `record`; taken by `recipe` where its elements are there."""
    if record.stored is None:
        portion = portion_of(record.layout, record.shape)
        return summarise(archive.load(record), recipe, portion)
    if record.sample is not None:
        raise DumpcmpError(f"of {record.key} {record.sample} are kept, and no Summary")
    numbers = archive.load(record).bits.astype(np.float64, copy=False)
    return unpack(record.stored, numbers, record.dtype, record.shape)


def is_zero_everywhere(side: Side, key: Key) -> bool:
    """Whether every element of a value is zero, on all ranks that have it."""
    try:
        summaries = [load_summary(side.archive, one) for one in side.listing.values[key]]
    except DumpcmpError:  # what cannot be read tells nothing
        return False
    return all(summary.num_zero == summary.count > 0 for summary in summaries)


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
    if _are_replicas(found):
        return Summed(found[0])
    if is_unstated(held):
        raise unstated(held)
    plan = plan_unshard(held.shards())
    if any(s.whole == s.shape != plan.shape for s in found):  # nobody knew when it was dumped
        raise unstated(held)
    return Summed(joined(plan, found), tuple(_disagreements(plan, found)))


def is_unstated(held: Held) -> bool:
    """Whether a value of a partitioned run comes without a word on how it lies over the ranks."""
    layouts = (shard.layout for shard in held.shards())
    return held.facts.num_ranks > 1 and not any(one.dims or one.over for one in layouts)


def unstated(held: Held) -> AssemblyError:
    """Why such a value cannot be compared: only elements can be tried against layouts."""
    op = held.records[0].key.op
    return AssemblyError(
        "only summaries of it are kept, and nothing said in time how it lies over the ranks: state "
        f"it in the program with dumpcmp.layout, or dump again with --keep-full '{op}'"
    )


def _are_replicas(held: list[Summary]) -> bool:
    first = held[0]
    same = {(s.whole, s.shape, s.digest or _numbers(s)) for s in held}
    return len(same) == 1 and first.whole[: len(first.shape)] == first.shape


def _numbers(summary: Summary) -> object:
    """All numbers of a Summary without a digest: replicas have the same, bit for bit."""
    sketch = summary.sketch.sums.tobytes() if summary.sketch else summary  # itself alone
    extremes = (summary.min, summary.max, summary.num_nan, summary.num_zero)
    return sketch, extremes, summary.sum, summary.sum_squares


def whole_elements(held: Held) -> Value:
    """The elements of a value that is not summarised, by what its layouts say."""
    first = held.records[0]
    if len({record.digest for record in held.records}) == 1 and not first.layout:
        return held.load(first)
    return unshard(plan_unshard(held.shards()), held.loader()).value


def _disagreements(plan: Plan, held: list[Summary]) -> Iterator[Disagreement]:
    for first, other in plan.replicas():
        far = estimate(held[first], held[other])
        if not far.equal and far.rel_l2:
            yield plan.disagreement(first, other, far.rel_l2, far.max_abs_diff)


def said_of_rows(golden: Summary, target: Summary) -> str:
    """Which tokens differ most, where segments tell them apart from the others."""
    found = worst_rows(golden, target)
    if found is None or found[2] < SEGMENT:
        return ""
    first, last, excess = found
    return f"mostly in rows {first} to {last}, {excess:.3g} times the median of the segments"


def joined(plan: Plan, held: Sequence[Summary]) -> Summary:
    """Follow `plan` as unsharding does, with sketches that add up in the place of elements."""
    if plan.missing:
        raise LayoutError(f"shards are missing: {', '.join(plan.missing)}")
    whole = join([_term(plan, tile, held) for tile in plan.tiles], plan.shape)
    if whole.whole != plan.shape:
        raise LayoutError(
            f"the summaries were taken of shards alone, not of their places in {plan.shape}",
            hint="layouts must be known when a partitioned run is compacted; keep it full instead",
        )
    return whole


def _term(plan: Plan, tile: Tile, held: Sequence[Summary]) -> Summary:
    """The Summary of one region: the sum of its partial terms, divided where the layout says so."""
    terms = [held[replicas[0]] for replicas in tile.terms]
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
