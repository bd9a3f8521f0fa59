"""Put shards back together: a Plan made from metadata alone, then carried out on values.

The last functions add up partial terms and tell how far replicas are apart, in their own dtypes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.align.mesh.regions import Region, Shape, Shard, Stretch, corners, regions
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.layouts import (
    MICROBATCH,
    Coordinate,
    Coordinates,
    Layout,
    Mode,
    ReduceOp,
)
from dumpcmp.nouns.quickly import quickly_made
from dumpcmp.nouns.value import Dtype, Kind, Value, widen

_BLOCK = 1 << 17  # elements
_WIDE = {Kind.FLOAT: "<f8", Kind.COMPLEX: "<c16"}  # exact sums of short floats; ints stay ints
_FOLDS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,  # and divided by the number of terms afterwards
    ReduceOp.MAX: np.maximum,
    ReduceOp.MIN: np.minimum,
    ReduceOp.PRODUCT: np.multiply,
}

Load = Callable[[int], Value]  # the elements of the shard at a position


@dataclass(frozen=True, slots=True)
class Tile:
    """One region of the whole, and who holds it: for each partial term the replicas of it."""

    region: Region
    terms: tuple[tuple[int, ...], ...]  # positions in the sequence of shards


def _place(rank: str, shard: Shard) -> str:
    """Where one of several shards of a rank is from."""
    at = {c.axis: c.index for c in shard.layout.coordinates}
    return f"microbatch {at[MICROBATCH]} on {rank}" if MICROBATCH in at else rank


@quickly_made
@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with the shards of one value, decided without seeing an element."""

    layout: Layout
    shape: Shape  # of the whole
    tiles: tuple[Tile, ...]
    shards: tuple[Shard, ...]
    reduction: ReduceOp = ReduceOp.SUM
    divisor: int = 1  # what the reduced values are divided by
    missing: tuple[str, ...] = ()  # places that hold a needed shard and are not there

    @property
    def adds_up(self) -> bool:
        """Whether ranks hold no shards of the value itself: terms of it, or too large a value."""
        return self.divisor > 1 or any(len(tile.terms) > 1 for tile in self.tiles)

    def replicas(self) -> Iterator[tuple[int, int]]:
        """The positions of all that must be the same: the first of each term, and another."""
        for first, *others in (term for tile in self.tiles for term in tile.terms):
            yield from ((first, other) for other in others)

    def places(self) -> list[str]:
        """What the holder of each shard is called: its rank, a microbatch of that, or a chunk."""
        ranks = [f"rank {shard.rank}" for shard in self.shards]
        if len(set(ranks)) == len(ranks):
            return ranks
        return [_place(rank, shard) for rank, shard in zip(ranks, self.shards, strict=True)]

    def disagreement(
        self, first: int, other: int, rel_l2: float, max_abs_diff: float
    ) -> Disagreement:
        """What is said of two shards that should be the same, by their positions."""
        ranks = self.shards[first].rank, self.shards[other].rank
        places = self.places()
        return Disagreement(ranks, (places[first], places[other]), rel_l2, max_abs_diff)

    def of(self, shards: Sequence[Shard]) -> Plan:
        """The same for others that have these shapes and places: for the digests of `shards`."""
        pairs = zip(self.shards, shards, strict=True)
        held = tuple([Shard(own.rank, own.shape, own.layout, o.digest) for own, o in pairs])
        whole = self.layout, self.shape, self.tiles, held
        return Plan(*whole, self.reduction, self.divisor, self.missing)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Replicas that are not the same: who holds them, and how far the second is from the first."""

    ranks: tuple[int, int]
    places: tuple[str, str]
    rel_l2: float
    max_abs_diff: float

    def __str__(self) -> str:
        one, other = self.places
        return f"REPLICA: {other} differs from {one} by rel_l2 {self.rel_l2:.3g}"


@dataclass(frozen=True, slots=True)
class Whole:
    """An unsharded value, and the replicas that were not the same on the way."""

    value: Value
    disagreements: tuple[Disagreement, ...] = ()


def axis_sizes(shards: Sequence[Shard]) -> dict[str, int]:
    """The size of each axis of the mesh that `shards` are on."""
    return {c.axis: c.size for shard in shards for c in shard.layout.coordinates}


def plan_unshard(shards: Sequence[Shard], golden_shape: Shape | None = None) -> Plan:
    """Decide from layouts, shapes and coordinates how `shards` become the whole value."""
    layout = _agreed(shards)
    axes = axis_sizes(shards)
    _check_axes(shards, layout, axes)
    split = [axis for dim in layout.dims for axis in dim.axes]
    summed = [p.axis for p in layout.over if p.mode is Mode.PARTIAL]
    held = _held(shards, layout, [*split, *summed])
    golden = dict(enumerate(golden_shape or ()))  # whose value may have fewer dims
    dims = [regions(n, dim, shards, axes, golden.get(n)) for n, dim in enumerate(layout.dims)]
    tiles, missing = [], []
    for corner in corners(axes, split):
        terms = {corner + term: held.get(corner + term, ()) for term in corners(axes, summed)}
        missing += [" ".join(map(str, at)) for at, who in terms.items() if not who]
        if all(terms.values()):
            rest = iter(corner)
            region = tuple(
                where[tuple(itertools.islice(rest, len(dim.placements)))]
                for dim, (where, _) in zip(layout.dims, dims, strict=True)
            )
            tiles.append(Tile(region, tuple(terms.values())))
    shape = tuple(size for _, size in dims)
    whole = (layout, shape, tuple(tiles), tuple(shards))
    return Plan(*whole, *_reduction(layout, axes), missing=tuple(missing))


def unshard(plan: Plan, load: Load) -> Whole:
    """Follow `plan` and decide nothing. Holds the whole and one tile's terms at a time."""
    disagreements = tuple(_disagreements(plan, load))
    whole: NDArray[np.generic] | None = None
    for tile in plan.tiles:
        value = _reduced(plan, tile, load)
        if tile.region == _all_of(plan.shape):
            return Whole(value, disagreements)  # nothing to join: no copy
        if whole is None:
            whole, dtype = np.zeros(plan.shape, value.bits.dtype), value.dtype
        for there, here in slices(tile.region):
            whole[there] = value.bits[here]
    if whole is None:
        raise LayoutError(
            f"no region is complete: {', '.join(plan.missing)} missing",
            hint="dumpcmp audit names the ranks that left no archive",
        )
    return Whole(Value(dtype, whole), disagreements)


def _reduced(plan: Plan, tile: Tile, load: Load) -> Value:
    terms = [load(replicas[0]) for replicas in tile.terms]
    if len(terms) == plan.divisor == 1:
        return terms[0]
    return reduce_terms(terms, plan.reduction, plan.divisor)


def _disagreements(plan: Plan, load: Load) -> Iterator[Disagreement]:
    for first, other in plan.replicas():
        one, two = plan.shards[first], plan.shards[other]
        if one.digest and one.digest == two.digest:
            continue
        mine, theirs = load(first), load(other)
        if not mine.same_bits(theirs):
            far = distance(mine, theirs)
            yield plan.disagreement(first, other, far.rel_l2, far.max_abs_diff)


def _all_of(shape: Shape) -> Region:
    """The region that is everything, in the order in which it lies."""
    return tuple((Stretch(0, 0, size),) for size in shape)


def slices(region: Region) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """For each block of `region` the slices of the whole and of the shard that are the same."""
    dims = [
        [
            (
                slice(one.whole, one.whole + one.length),
                slice(one.local, one.local + one.length),
            )
            for one in stretches
        ]
        for stretches in region
    ]
    for block in itertools.product(*dims):
        yield tuple([whole for whole, _ in block]), tuple([local for _, local in block])


def _agreed(shards: Sequence[Shard]) -> Layout:
    first = shards[0]
    layout = first.layout.expanded(len(first.shape))
    for other in shards[1:]:
        if len(other.shape) != len(first.shape):
            raise LayoutError(
                f"rank {first.rank} holds {list(first.shape)} and rank {other.rank} "
                f"{list(other.shape)}: they are no shards of one value",
                hint="do the ranks run the same ops here?",
            )
        said = other.layout.expanded(len(other.shape))
        if replace(said, coordinates=layout.coordinates) != layout:
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
    seen: dict[Coordinates, int] = {}
    for one in shards:
        before = seen.setdefault(one.layout.coordinates, one.rank)
        if before != one.rank:
            raise LayoutError(
                f"ranks {before} and {one.rank} are at the same place of the mesh",
                hint="name the whole mesh in the layout file: 'mesh: dp=2 tp=2'",
            )


def _reduction(layout: Layout, axes: Mapping[str, int]) -> tuple[ReduceOp, int]:
    """How terms become one value, a mean as a sum, and what that is divided by."""
    partial = {p.axis: p.reduction for p in layout.over if p.mode is Mode.PARTIAL}
    kinds = set(partial.values())
    if len(kinds) > 1 and kinds != {ReduceOp.SUM, ReduceOp.AVG}:
        raise LayoutError(
            f"layout '{layout}' mixes the reductions {' and '.join(sorted(kinds))}",
            hint="only sum and avg go together",
        )
    averaged = [axis for axis, kind in partial.items() if kind is ReduceOp.AVG]
    divisor = math.prod(axes[axis] for axis in (*averaged, *layout.divided_by))
    return min(kinds - {ReduceOp.AVG}, default=ReduceOp.SUM), divisor


def _held(
    shards: Sequence[Shard], layout: Layout, axes: Sequence[str]
) -> dict[Coordinates, tuple[int, ...]]:
    """The positions of the shards at each corner of `axes`."""
    sums = {p.axis: p.mode for p in layout.over if p.mode in (Mode.RUNNING, Mode.REWINDING)}
    held: dict[Coordinates, tuple[int, ...]] = {}
    for position, one in enumerate(shards):
        if any(_is_so_far(c, sums[c.axis]) for c in one.layout.coordinates if c.axis in sums):
            continue  # the last sum includes it
        corner = one.layout.at(axes)
        held[corner] = (*held.get(corner, ()), position)
    return held


def _is_so_far(at: Coordinate, mode: Mode) -> bool:
    """Whether a sum lacks what microbatches that come later add to it."""
    return at.index != (at.size - 1 if mode is Mode.RUNNING else 0)


def reduce_terms(terms: Sequence[Value], reduction: ReduceOp, divisor: int = 1) -> Value:
    """Fold `terms` by `reduction`, divide by `divisor`, round once to the terms' dtype.

    Works block by block, so that the wide sums never take more than a block.
    """
    dtype, shape = terms[0].dtype, terms[0].shape
    if divisor != 1 and dtype.kind not in _WIDE:
        raise LayoutError(
            f"{dtype} values cannot be divided by {divisor}",
            hint="declare them replicated, or a plain partial sum",
        )
    flat = [np.ascontiguousarray(term.bits).reshape(-1) for term in terms]
    whole = np.empty_like(flat[0])
    for start in range(0, max(1, whole.size), _BLOCK):
        block = slice(start, start + _BLOCK)
        total = widen(flat[0][block], dtype).astype(_WIDE.get(dtype.kind, dtype.storage))
        for bits in flat[1:]:
            _FOLDS[reduction](total, widen(bits[block], dtype), out=total)
        whole[block] = _narrow(total if divisor == 1 else np.divide(total, divisor), dtype)
    return Value(dtype, whole.reshape(shape))


def _narrow(numbers: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
    """The bits that stand for `numbers` in `dtype`, rounded to nearest even: undoes `widen`."""
    match dtype.name:
        case "bfloat16":
            return _bfloat16_bits(numbers.astype(np.float32))
        case "float8_e4m3fn" | "float8_e5m2":
            raise LayoutError(
                f"partial sums in {dtype} are not supported",
                hint="declare a layout without 'partial' and without a divisor",
            )
        case _:
            return numbers.astype(dtype.storage)


def _bfloat16_bits(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)  # rounding a NaN up could make it infinite
    return np.where(np.isnan(numbers), quiet, rounded).astype(np.uint16)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far one value is from another, as sums that add over regions."""

    error: float = 0.0  # sum of squared differences; infinite where only one side is finite
    norm: float = 0.0  # sum of squares of the first
    max_abs_diff: float = 0.0

    def __add__(self, other: Distance) -> Distance:
        worst = max(self.max_abs_diff, other.max_abs_diff)
        return Distance(self.error + other.error, self.norm + other.norm, worst)

    @property
    def rel_l2(self) -> float:
        """The relative L2 distance; infinite from zero to anything else."""
        if not self.error:
            return 0.0
        return math.sqrt(self.error / self.norm) if self.norm else math.inf


def distance(value: Value, other: Value, factor: float = 1.0) -> Distance:
    """How far `other` is from `factor` times `value`, in blocks that stay in the cache."""
    total, ours, theirs = Distance(), value.line(), other.line()
    for start in range(0, ours.numel, _BLOCK):
        block = slice(start, start + _BLOCK)
        numbers, others = (widen(side.bits[block], side.dtype) for side in (ours, theirs))
        if factor != 1:
            numbers = numbers * np.asarray(factor, numbers.dtype)
        total += _block_distance(numbers, others)
    return total


def squares(value: Value, other: Value) -> tuple[float, float]:
    """The sums of squares of a distance: of the differences, and of `value`."""
    ours, theirs = value.bits, other.bits
    if ours.dtype == theirs.dtype == np.float32 and ours.size <= _BLOCK:
        numbers, others = (np.ascontiguousarray(bits).reshape(-1) for bits in (ours, theirs))
        with np.errstate(over="ignore", invalid="ignore"):
            difference = np.subtract(others, numbers)
            error, norm = float(difference.dot(difference)), float(numbers.dot(numbers))
        if math.isfinite(error + norm):
            return error, norm
    found = distance(value, other)
    return found.error, found.norm


def _block_distance(numbers: NDArray[Any], others: NDArray[Any]) -> Distance:
    if numbers.dtype == others.dtype == np.float32:
        quick = _finite_distance(numbers, others)
        if math.isfinite(quick.error + quick.norm):
            return quick
    return _any_distance(numbers.astype(np.float64), others.astype(np.float64))


def _finite_distance(numbers: NDArray[Any], others: NDArray[Any]) -> Distance:
    """The sums of a block of float32 in its own precision; not finite where an element is not."""
    with np.errstate(over="ignore", invalid="ignore"):
        difference = np.subtract(others, numbers)
        error, norm = np.dot(difference, difference), np.dot(numbers, numbers)
        worst = max(difference.max(initial=0), -difference.min(initial=0))
    return Distance(float(error), float(norm), float(worst))


def _any_distance(numbers: NDArray[np.float64], others: NDArray[np.float64]) -> Distance:
    with np.errstate(invalid="ignore"):  # the infinities of both sides are equal, not NaN apart
        difference = np.abs(others - numbers)
    difference[(numbers == others) | (np.isnan(numbers) & np.isnan(others))] = 0
    difference[np.isnan(difference)] = np.inf
    finite = numbers[np.isfinite(numbers)]
    return Distance(
        float(np.dot(difference, difference)),
        float(np.dot(finite, finite)),
        float(difference.max(initial=0)),
    )
