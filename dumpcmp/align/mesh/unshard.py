"""Put shards back together: a Plan made from metadata alone, then carried out on values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dumpcmp.align.mesh.reduce import distance, reduce_terms, same_bits
from dumpcmp.align.mesh.regions import (
    Corner,
    DimRegions,
    Region,
    Run,
    Shape,
    Shard,
    corners,
    indices,
    named,
    regions,
)
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.layouts import Layout, Mesh, Mode, merge_sizes, placed
from dumpcmp.nouns.value import Value


@dataclass(frozen=True, slots=True)
class Cell:
    """One region of the whole, and who holds it: for each partial term the replicas of it."""

    region: Region
    terms: tuple[tuple[int, ...], ...]  # positions in the sequence of shards


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with the shards of one value, decided without seeing an element."""

    layout: Layout
    shape: Shape  # of the whole
    cells: tuple[Cell, ...]
    ranks: tuple[int, ...]  # of the shards, by position
    digests: tuple[str, ...]
    reduction: str = "sum"
    divisor: int = 1  # what the reduced values are divided by
    missing: tuple[str, ...] = ()  # places that hold a needed shard and are not there


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Replicas that are not the same: the two ranks, and how far the second is from the first."""

    ranks: tuple[int, int]
    rel_l2: float
    max_abs_diff: float

    def __str__(self) -> str:
        one, other = self.ranks
        return f"REPLICA: rank {other} differs from rank {one} by rel_l2 {self.rel_l2:.3g}"


@dataclass(frozen=True, slots=True)
class Whole:
    """An unsharded value, and the replicas that were not the same on the way."""

    value: Value
    disagreements: tuple[Disagreement, ...] = ()


Load = Callable[[int], Value]  # the elements of the shard at a position


def plan_unshard(shards: Sequence[Shard], golden_shape: Shape | None = None) -> Plan:
    """Decide from layouts, shapes and places how `shards` become the whole value."""
    layout = _agreed(shards)
    axes = merge_sizes(shard.layout.place for shard in shards)
    _check_axes(shards, layout, axes)
    split = [p.axis for dim in layout.dims for p in dim.placements]
    summed = [p.axis for p in layout.over if p.mode is Mode.PARTIAL]
    reduction, divisor = _reduction(layout, axes)
    held = _held(shards, split, summed, _running(layout))
    dims = [
        regions(n, dim, shards, axes, golden_shape[n] if golden_shape else None)
        for n, dim in enumerate(layout.dims)
    ]
    cells, missing = [], []
    for corner in corners(axes, split):
        terms = {term: held.get((corner, term), ()) for term in corners(axes, summed)}
        missing += [named(axes, split + summed, corner + t) for t, who in terms.items() if not who]
        if all(terms.values()):
            cells.append(Cell(_region(layout, dims, corner), tuple(terms.values())))
    return Plan(
        layout=layout,
        shape=tuple(size for _, size in dims),
        cells=tuple(cells),
        ranks=tuple(shard.rank for shard in shards),
        digests=tuple(shard.digest for shard in shards),
        reduction=reduction,
        divisor=divisor,
        missing=tuple(missing),
    )


def unshard(plan: Plan, load: Load) -> Whole:
    """Follow `plan` and decide nothing. Holds the whole and one cell's terms at a time."""
    whole: NDArray[np.generic] | None = None
    disagreements: list[Disagreement] = []
    for cell in plan.cells:
        disagreements += _disagreements(plan, cell, load)
        first = load(cell.terms[0][0])
        if len(cell.terms) > 1 or plan.divisor > 1:
            terms = (load(replicas[0]) for replicas in cell.terms)
            first = reduce_terms(terms, plan.reduction, plan.divisor)
        if cell.region == _all_of(plan.shape):
            return Whole(first, tuple(disagreements))  # nothing to join: no copy
        if whole is None:
            whole, dtype = np.zeros(plan.shape, first.bits.dtype), first.dtype
        for there, here in slices(cell.region):
            whole[there] = first.bits[here]
    if whole is None:
        raise LayoutError(
            f"no region is complete: {', '.join(plan.missing)} missing",
            hint="dumpcmp audit names the ranks that left no archive",
        )
    return Whole(Value(dtype, whole), tuple(disagreements))


def _all_of(shape: Shape) -> Region:
    """The region that is everything, in the order in which it lies."""
    return tuple((Run(0, 0, size),) for size in shape)


def shard(whole: Value, layout: Layout, mesh: Mesh) -> list[tuple[Shard, Value]]:
    """What each rank of `mesh` holds of `whole`: the inverse of unsharding, for laws and plans.

    Terms of a partial value are an arbitrary split of it: all of it on the first rank.
    """
    layout = layout.expanded(len(whole.shape))
    shares = []
    for rank in range(mesh.num_ranks):
        mine = placed(layout, mesh, rank)
        at = {c.axis: c.index for c in mine.place}
        axes = merge_sizes([mine.place])
        bits = whole.bits
        for n, dim in enumerate(layout.dims):
            bits = bits.take(indices(dim, whole.shape[n], axes, at), axis=n)
        if any(at[p.axis] for p in layout.over if p.mode is Mode.PARTIAL):
            bits = np.zeros_like(bits)
        shares.append((Shard(rank, bits.shape, mine), Value(whole.dtype, bits)))
    return shares


def slices(region: Region) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """For each block of `region` the slices of the whole and of the shard that are the same."""
    for runs in itertools.product(*region):
        yield (
            tuple(slice(run.whole, run.whole + run.length) for run in runs),
            tuple(slice(run.local, run.local + run.length) for run in runs),
        )


def _disagreements(plan: Plan, cell: Cell, load: Load) -> Iterator[Disagreement]:
    for first, *others in cell.terms:
        for other in others:
            if plan.digests[first] and plan.digests[first] == plan.digests[other]:
                continue
            one, two = load(first), load(other)
            if not same_bits(one, two):
                far = distance(one, two)
                ranks = (plan.ranks[first], plan.ranks[other])
                yield Disagreement(ranks, far.rel_l2, far.max_abs_diff)


def _agreed(shards: Sequence[Shard]) -> Layout:
    first = shards[0]
    layout = first.layout.expanded(len(first.shape))
    for other in shards[1:]:
        said = other.layout.expanded(len(other.shape))
        if said.sentence != layout.sentence or said.shape != layout.shape:
            raise LayoutError(
                f"rank {first.rank} says '{first.layout}' and rank {other.rank} '{other.layout}'",
                hint="state the layout that holds: dumpcmp compare --layout 'OP=...'",
            )
    if len(layout.dims) != len(first.shape):
        raise LayoutError(
            f"layout '{layout.sentence}' names {len(layout.dims)} dims, but the tensor has shape "
            f"{list(first.shape)}",
            hint="correct it without a new run: dumpcmp compare --layout 'OP=...'",
        )
    return layout.sentence


def _check_axes(shards: Sequence[Shard], layout: Layout, axes: Mapping[str, int]) -> None:
    unknown = layout.axes - axes.keys()
    if unknown:
        raise LayoutError(
            f"layout '{layout}' names the mesh axis {min(unknown)!r}, which no rank knows",
            hint="name the mesh in the layout file: 'mesh: dp=2 tp=2'",
        )
    for one in shards:
        if open_axes := [axis for axis in one.layout.open_axes if axes[axis] > 1]:
            raise LayoutError(
                f"nobody says how the value lies over the mesh axis {open_axes[0]!r}",
                hint=f"declare it: --layout 'OP=b[{open_axes[0]}] ...'",
            )
    seen: dict[tuple[object, ...], int] = {}
    for one in shards:
        before = seen.setdefault(one.layout.place, one.rank)
        if before != one.rank:
            raise LayoutError(
                f"ranks {before} and {one.rank} are at the same place of the mesh",
                hint="name the whole mesh in the layout file: 'mesh: dp=2 tp=2'",
            )


def _reduction(layout: Layout, axes: Mapping[str, int]) -> tuple[str, int]:
    kinds = {p.reduction for p in layout.over if p.mode is Mode.PARTIAL}
    if len(kinds - {"avg", "sum"}) > 1 or (kinds - {"avg", "sum"} and kinds & {"avg", "sum"}):
        raise LayoutError(
            f"layout '{layout}' mixes the reductions {' and '.join(sorted(kinds))}",
            hint="only sum and avg go together",
        )
    averaged = [p.axis for p in layout.over if p.reduction == "avg"]
    divisor = math.prod(axes[axis] for axis in (*averaged, *layout.divided_by))
    return min(kinds - {"avg"}, default="sum"), divisor


def _running(layout: Layout) -> list[str]:
    return [p.axis for p in layout.over if p.mode is Mode.RUNNING]


def _held(
    shards: Sequence[Shard], split: list[str], summed: list[str], running: list[str]
) -> dict[tuple[Corner, Corner], tuple[int, ...]]:
    held: dict[tuple[Corner, Corner], tuple[int, ...]] = {}
    for position, one in enumerate(shards):
        if any(c.axis in running and c.index + 1 < c.size for c in one.layout.place):
            continue  # a sum so far, which the last one includes
        at = {c.axis: c.index for c in one.layout.place}
        corner = tuple(at[axis] for axis in split), tuple(at[axis] for axis in summed)
        held[corner] = (*held.get(corner, ()), position)
    return held


def _region(layout: Layout, dims: Sequence[DimRegions], corner: Corner) -> Region:
    rest = iter(corner)
    return tuple(
        runs[tuple(itertools.islice(rest, len(dim.placements)))]
        for dim, (runs, _) in zip(layout.dims, dims, strict=True)
    )
