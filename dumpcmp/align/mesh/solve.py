"""Find the layout that nobody stated: try hypotheses on the shards until one gives golden."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dumpcmp.align.mesh.regions import Shape, Shard
from dumpcmp.align.mesh.unshard import (
    Distance,
    Load,
    Plan,
    Whole,
    axis_sizes,
    distance,
    plan_unshard,
    slices,
    unshard,
)
from dumpcmp.judge.tolerances import REGION
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.layouts import MICROBATCH, Dim, Layout, Mesh, Mode, Name, Placement
from dumpcmp.nouns.value import Value, widen

_MERGED = ("a", "b", "c", "d", "e", "f", "g", "h")  # names for parts that nobody named
_SAMPLED = 1 << 20  # elements of a block that decide whether it fits
_SIGNED = 4096  # elements of a slice that its signature looks at
_SHOWN = 6  # hypotheses that a message quotes


@dataclass(frozen=True, slots=True)
class Question:
    """What is known before solving, and which kinds of answer make sense for the value."""

    golden: Value
    shards: Sequence[Shard]
    load: Load
    limit: float  # rel_l2 up to which a hypothesis fits
    may_be_partial: bool = True  # no for gradients of parameters: they must have been reduced
    may_be_scaled: bool = False  # yes for gradients of activations: a mean over fewer samples

    def distance(self, plan: Plan, position: int, tile: int) -> float:
        """The rel_l2 of the shard at `position` from the region of golden that a tile is.

        Of large blocks a sample decides: the beginning of each.
        """
        total, mine = Distance(), self.load(position)
        for there, here in slices(plan.tiles[tile].region):
            part, shard = self.golden.bits[there], mine.bits[here]
            if part.size > _SAMPLED:
                rows = max(1, len(part) * _SAMPLED // part.size)
                part, shard = part[:rows], shard[:rows]
            total += distance(Value(self.golden.dtype, part), Value(mine.dtype, shard))
        return total.rel_l2


@dataclass(frozen=True, slots=True)
class Solved:
    """The layout that fits, and how well."""

    plan: Plan
    whole: Whole
    rel_l2: float


@dataclass(frozen=True, slots=True)
class Unsolved:
    """No hypothesis fits: what was tried, and the one that came closest."""

    tried: tuple[str, ...]
    closest: Plan | None = None
    rel_l2: float = math.inf

    def __str__(self) -> str:
        if not self.tried:
            return "no layout gives golden's shape from these shards"
        shown = ", ".join(f"'{text}'" for text in self.tried[:_SHOWN])
        more = f" and {len(self.tried) - _SHOWN} more" if len(self.tried) > _SHOWN else ""
        near = f"; closest '{self.closest.layout}' with rel_l2 " if self.closest else ""
        return f"no layout fits: tried {shown}{more}" + (near and f"{near}{self.rel_l2:.2g}")


_Guess = Callable[[Question, Sequence[Shard]], Iterator[Layout]]


def solve(question: Question, first: Layout | None = None) -> Solved | Unsolved:
    """Try every layout that gives golden's shape, likeliest first, and keep the first that fits.

    `first`, the layout of a like value, is tried before all others.
    """
    tried: list[str] = []
    closest, nearest = None, math.inf
    for plan in hypotheses(question, first):
        tried.append(str(plan.layout))
        error, whole = _fit(question, plan)
        if whole is not None and error <= question.limit:
            return Solved(plan, whole, error)
        if error < nearest:
            closest, nearest = plan, error
    return Unsolved(tuple(dict.fromkeys(tried)), closest, nearest)


def hypotheses(question: Question, first: Layout | None = None) -> Iterator[Plan]:
    """A plan for every layout that gives golden's shape, likeliest first, each once."""
    guesses: list[_Guess] = [_assigned, partial(_assigned, unequal=True)]
    if first is not None:
        guesses.insert(0, partial(_supposed, first))
    seen: set[tuple[Layout, tuple[int, ...]]] = set()
    for guess in guesses:
        for shards in _meshes(question.shards):
            sizes = tuple(axis_sizes(shards).values())
            for layout in guess(question, shards):
                is_new = (layout, sizes) not in seen
                seen.add((layout, sizes))
                if is_new and (plan := _plan(question, shards, layout)):
                    yield plan


def supposing(question: Question, layout: Layout) -> Plan | None:
    """The plan for the shards if they lay as `layout` says, where that gives golden's shape."""
    plan = next(hypotheses(question, layout), None)
    return plan if plan is not None and plan.layout == layout.sentence else None


def _plan(question: Question, shards: Sequence[Shard], layout: Layout) -> Plan | None:
    words = layout.dims, layout.over, layout.divided_by
    said = [
        Shard(s.rank, s.shape, Layout(*words, s.layout.known().coordinates), s.digest)
        for s in shards
    ]
    try:
        plan = plan_unshard(said, question.golden.shape)
    except LayoutError:
        return None  # the shards' shapes rule it out
    return plan if plan.shape == question.golden.shape and not plan.missing else None


def _fit(question: Question, plan: Plan) -> tuple[float, Whole | None]:
    """How far from golden `plan` leads; what fails in the first region is not carried out."""
    if len(plan.tiles) > 1 and not plan.adds_up:
        error = question.distance(plan, plan.tiles[0].terms[0][0], 0)
        if error > REGION * question.limit * math.sqrt(len(plan.tiles)):
            return error, None
    whole = unshard(plan, question.load)
    apart = max((found.rel_l2 for found in whole.disagreements), default=0.0)
    if apart > question.limit:
        return apart, None
    return distance(question.golden, whole.value).rel_l2, whole


def _meshes(shards: Sequence[Shard]) -> Iterator[list[Shard]]:
    """The shards as they say where they are; where they do not, on every mesh that they can be.

    That is one axis of all ranks, then two axes whose sizes multiply to their number.
    """
    if all(shard.layout.coordinates for shard in shards):
        yield list(shards)
        return
    num = len(shards)
    number = {rank: n for n, rank in enumerate(sorted(shard.rank for shard in shards))}
    pairs = [(outer, num // outer) for outer in range(2, num) if num % outer == 0]
    for axes in ((("ranks", num),), *((("ranks0", a), ("ranks1", b)) for a, b in pairs)):
        yield [
            replace(shard, layout=shard.layout.placed(Mesh(axes), number[shard.rank]).known(False))
            for shard in shards
        ]


def _supposed(layout: Layout, _: Question, shards: Sequence[Shard]) -> Iterator[Layout]:
    if layout.axes <= axis_sizes(shards).keys():
        yield layout


def _assigned(
    question: Question, shards: Sequence[Shard], unequal: bool = False
) -> Iterator[Layout]:
    """Every way in which the axes that nobody spoke about can act on the value."""
    base, ndim, sizes = shards[0].layout, len(shards[0].shape), axis_sizes(shards)
    dims = base.expanded(ndim).dims or tuple(Dim((Name(f"d{n}"),)) for n in range(ndim))
    if any(len(each) != len(dims) for each in (*(s.shape for s in shards), question.golden.shape)):
        return
    options = [list(_options(question, axis, sizes[axis], unequal)) for axis in base.open_axes]
    for chosen in sorted(itertools.product(*options), key=lambda c: sum(o.surprise for o in c)):
        layout = Layout(dims, base.over, base.divided_by)
        for option in chosen:
            layout = option.applied(layout)
        if any(p.mode is Mode.INTERLEAVED for dim in layout.dims for p in dim.placements[1:]):
            continue  # merged parts are split before their dim is
        yield layout
        if fewer := tuple(o.placement.axis for o in chosen if o.sees_fewer(question)):
            yield replace(layout, divided_by=fewer)


@dataclass(frozen=True, slots=True)
class _Option:
    """One thing that one axis may do with the value; the likelier, the less surprise."""

    placement: Placement
    surprise: int
    dim: int | None = None
    names: tuple[Name, ...] = ()

    def sees_fewer(self, question: Question) -> bool:
        """Whether a mean over this axis's samples may have made the values too large."""
        running = self.placement.mode is Mode.RUNNING
        return running or (question.may_be_scaled and self.dim == 0)

    def applied(self, layout: Layout) -> Layout:
        if self.dim is None:
            return replace(layout, over=(*layout.over, self.placement))
        dim = layout.dims[self.dim]
        dim = Dim(self.names or dim.names, (*dim.placements, self.placement))
        return replace(layout, dims=(*layout.dims[: self.dim], dim, *layout.dims[self.dim + 1 :]))


def _options(question: Question, axis: str, size: int, unequal: bool) -> Iterator[_Option]:
    local, whole = question.shards[0].shape, question.golden.shape
    yield _Option(Placement(axis, Mode.REPLICATED), 0)
    for n in range(len(whole)):
        if local[n] < whole[n]:
            yield from (_merged if unequal else _splits)(question, axis, size, n)
    if axis == MICROBATCH:
        yield _Option(Placement(axis, Mode.RUNNING), 3)
    if question.may_be_partial:
        yield _Option(Placement(axis, Mode.PARTIAL), 6)
        yield _Option(Placement(axis, Mode.PARTIAL, "avg"), 7)


def _splits(question: Question, axis: str, size: int, n: int) -> Iterator[_Option]:
    whole = question.golden.shape[n]
    for mode, surprise in ((Mode.SHARD, 1), (Mode.ZIGZAG, 4), (Mode.CYCLIC, 5)):
        yield _Option(Placement(axis, mode), surprise, n)
    for num in (2, 3):
        if whole % (num * size) == 0:
            yield _Option(Placement(axis, Mode.INTERLEAVED), 2, n, tuple(map(Name, _MERGED[:num])))
    if any(shard.shape[n] * size > whole for shard in question.shards):
        yield _Option(Placement(axis), 8, n, (Name(f"d{n}", whole),))


def _merged(question: Question, axis: str, size: int, n: int) -> Iterator[_Option]:
    """Parts of unequal sizes merged in dim `n`, such as the q, k and v of grouped queries."""
    if found := _merged_sizes(question.golden, question.load(0), n, size):
        parts = tuple(map(Name, _MERGED, found))
        yield _Option(Placement(axis, Mode.INTERLEAVED), 3, n, parts)


def _merged_sizes(golden: Value, first: Value, n: int, size: int) -> Shape | None:
    """Sizes of the parts, read off where the slices of the first shard lie in golden.

    Each slice along the dim has a signature; the first shard's runs start where the parts do.
    """
    if np.delete(golden.shape, n).tolist() != np.delete(first.shape, n).tolist():
        return None
    nearest = _nearest(_signatures(golden, n), _signatures(first, n))
    starts = np.flatnonzero(np.diff(nearest, prepend=-2) != 1)
    lengths = np.diff([*starts, len(nearest)])
    sizes = np.diff([*nearest[starts], golden.shape[n]])
    likely = nearest[0] == 0 and 1 < len(sizes) <= len(_MERGED)
    return tuple(map(int, sizes)) if likely and np.array_equal(lengths * size, sizes) else None


def _signatures(value: Value, n: int) -> NDArray[np.float64]:
    """One number for each slice of `value` along dim `n`: a projection on fixed random weights."""
    some, budget = [slice(None)], _SIGNED
    moved = np.moveaxis(value.bits, n, 0)
    for size in moved.shape[1:]:
        some.append(slice(max(1, min(size, budget))))
        budget //= max(1, min(size, budget))
    rows = widen(moved[tuple(some)], value.dtype).reshape(value.shape[n], -1)
    weights = np.random.default_rng(0).standard_normal(rows.shape[1])
    projected: NDArray[np.float64] = np.abs(rows.astype(np.complex128) @ weights)
    return projected


def _nearest(theirs: NDArray[np.float64], mine: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each signature of `mine` the position of the nearest of `theirs`."""
    order = np.argsort(theirs, kind="stable")
    above = np.searchsorted(theirs[order], mine).clip(1, len(theirs) - 1)
    low, high = theirs[order[above - 1]], theirs[order[above]]
    nearest: NDArray[np.int64] = order[np.where(mine - low <= high - mine, above - 1, above)]
    return nearest
