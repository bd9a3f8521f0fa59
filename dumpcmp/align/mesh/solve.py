"""Find the layout that nobody stated: try hypotheses on the shards until one gives golden."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dumpcmp.align.mesh.reduce import Distance, distance
from dumpcmp.align.mesh.regions import Shape, Shard
from dumpcmp.align.mesh.unshard import Load, Plan, Whole, plan_unshard, slices, unshard
from dumpcmp.nouns.dtypes import widen
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.layouts import (
    MICROBATCH,
    Dim,
    Layout,
    Mesh,
    Mode,
    Name,
    Placement,
    merge_sizes,
    placed,
)
from dumpcmp.nouns.value import Value

_MERGED = ("a", "b", "c", "d", "e", "f", "g", "h")  # names for parts that nobody named
_SAMPLED = 1 << 20  # elements of a block that decide whether it fits
_SIGNED = 4096  # elements of a slice that its signature looks at
_SHOWN = 6  # hypotheses that a message quotes


@dataclass(frozen=True, slots=True)
class Question:
    """What is known before solving, and which kinds of answer make sense for the value."""

    golden: Value
    shards: Sequence[Shard]
    limit: float  # rel_l2 up to which a hypothesis fits
    may_be_partial: bool = True  # no for gradients of parameters: they must have been reduced
    may_be_scaled: bool = False  # yes for gradients of activations: a mean over fewer samples


@dataclass(frozen=True, slots=True)
class Solved:
    """The layout that fits, and how well."""

    plan: Plan
    whole: Whole
    rel_l2: float

    def __str__(self) -> str:
        return f"layout solved: '{self.plan.layout}' fits with rel_l2 {self.rel_l2:.2g}"


@dataclass(frozen=True, slots=True)
class Unsolved:
    """No hypothesis fits: what was tried, and the one that came closest."""

    tried: tuple[str, ...]
    closest: str = ""
    rel_l2: float = math.inf

    def __str__(self) -> str:
        if not self.tried:
            return "no layout gives golden's shape from these shards"
        shown = ", ".join(f"'{text}'" for text in self.tried[:_SHOWN])
        more = f" and {len(self.tried) - _SHOWN} more" if len(self.tried) > _SHOWN else ""
        near = f"; closest '{self.closest}' with rel_l2 {self.rel_l2:.2g}" if self.closest else ""
        return f"no layout fits: tried {shown}{more}{near}"


def solve(question: Question, load: Load, first: Layout | None = None) -> Solved | Unsolved:
    """Try every layout that gives golden's shape, likeliest first, and keep the first that fits.

    `first`, the layout of a like value, is tried before all others.
    """
    tried: list[str] = []
    closest, nearest = "", math.inf
    for layout, plan in _plans(question, load, first):
        if layout in tried:
            continue
        tried.append(layout)
        error, whole = _fit(question, plan, load)
        if whole is not None and error <= question.limit:
            return Solved(plan, whole, error)
        if error < nearest:
            closest, nearest = layout, error
    return Unsolved(tuple(tried), closest, nearest)


def hypotheses(question: Question, load: Load) -> Iterator[Plan]:
    """Every layout that gives golden's shape, likeliest first, each once."""
    yield from dict(_plans(question, load, None)).values()


def supposing(question: Question, layout: Layout) -> Plan | None:
    """The plan for the shards if they lay as `layout` says, where that gives golden's shape."""
    for shards in _meshes(question.shards):
        if layout.axes <= merge_sizes(shard.layout.place for shard in shards).keys():
            plan = _plan(question, [_with(shard, layout) for shard in shards])
            if plan is not None:
                return plan
    return None


def _plan(question: Question, shards: Sequence[Shard]) -> Plan | None:
    try:
        plan = plan_unshard(shards, question.golden.shape)
    except LayoutError:
        return None  # the shards' shapes rule it out
    return plan if plan.shape == question.golden.shape and not plan.missing else None


def _plans(question: Question, load: Load, first: Layout | None) -> Iterator[tuple[str, Plan]]:
    """Every hypothesis that gives golden's shape, with its plan."""
    for shards in _hypotheses(question, load, first):
        if (plan := _plan(question, shards)) is not None:
            yield str(plan.layout), plan


def _fit(question: Question, plan: Plan, load: Load) -> tuple[float, Whole | None]:
    """How far from golden `plan` leads; what fails in the first region is not carried out."""
    cell = plan.cells[0]
    if len(plan.cells) > 1 and len(cell.terms) == plan.divisor == 1:
        mine = load(cell.terms[0][0])
        error = cell_distance(question.golden, mine, plan, 0).rel_l2
        if error > 3 * question.limit * math.sqrt(len(plan.cells)):
            return error, None
    whole = unshard(plan, load)
    apart = max((found.rel_l2 for found in whole.disagreements), default=0.0)
    if apart > question.limit:
        return apart, None
    return distance(question.golden, whole.value).rel_l2, whole


def cell_distance(golden: Value, mine: Value, plan: Plan, cell: int) -> Distance:
    """How far the shard `mine` is from the region of `golden` that `cell` of `plan` is.

    Of large blocks a sample decides: the beginning of each.
    """
    total = Distance()
    for there, here in slices(plan.cells[cell].region):
        part, shard = golden.bits[there], mine.bits[here]
        if part.size > _SAMPLED:
            rows = max(1, len(part) * _SAMPLED // part.size)
            part, shard = part[:rows], shard[:rows]
        total += distance(Value(golden.dtype, part), Value(mine.dtype, shard))
    return total


def _hypotheses(question: Question, load: Load, first: Layout | None) -> Iterator[list[Shard]]:
    for shards in _meshes(question.shards):
        if first and first.axes <= merge_sizes(shard.layout.place for shard in shards).keys():
            yield [_with(shard, first) for shard in shards]
        yield from _assignments(question, shards, _splits)
    for shards in _meshes(question.shards):
        yield from _assignments(question, shards, partial(_merged, load(0)))


def _with(shard: Shard, layout: Layout) -> Shard:
    place = tuple(replace(c, known=True) for c in shard.layout.place)
    return replace(shard, layout=replace(layout, place=place, shape=None))


def _meshes(shards: Sequence[Shard]) -> Iterator[list[Shard]]:
    """The shards as they say where they are; where they do not, on every mesh that they can be."""
    if all(shard.layout.place for shard in shards):
        yield list(shards)
        return
    for axes in _factors(len(shards)):
        names = ("ranks",) if len(axes) == 1 else tuple(f"ranks{i}" for i in range(len(axes)))
        mesh = Mesh(tuple(zip(names, axes, strict=True)))
        ordered = sorted(shards, key=lambda shard: shard.rank)
        layouts = [placed(shard.layout, mesh, n) for n, shard in enumerate(ordered)]
        opened = [
            replace(layout, place=tuple(replace(c, known=False) for c in layout.place))
            for layout in layouts
        ]
        by_rank = {s.rank: replace(s, layout=o) for s, o in zip(ordered, opened, strict=True)}
        yield [by_rank[shard.rank] for shard in shards]


def _factors(num: int) -> Iterator[tuple[int, ...]]:
    """One axis of `num`, then two axes whose sizes multiply to it."""
    yield (num,)
    for outer in range(2, num):
        if num % outer == 0:
            yield outer, num // outer


def _assignments(
    question: Question, shards: list[Shard], splits: _SplitsOf
) -> Iterator[list[Shard]]:
    """Every way in which the axes that nobody spoke about can act on the value."""
    base = shards[0].layout
    ndim = len(shards[0].shape)
    if ndim != len(question.golden.shape):
        return
    dims = base.expanded(ndim).dims or tuple(Dim((Name(f"d{n}"),)) for n in range(ndim))
    if len(dims) != ndim:
        return
    sizes = merge_sizes(shard.layout.place for shard in shards)
    options = [
        list(_options(question, shards, axis, sizes[axis], splits)) for axis in base.open_axes
    ]
    for chosen in sorted(itertools.product(*options), key=lambda c: sum(o.surprise for o in c)):
        layout = Layout(dims, base.over, base.divided_by)
        for option in chosen:
            layout = option.applied(layout)
        if not all(_is_sentence(dim) for dim in layout.dims):
            continue
        yield [_with(shard, layout) for shard in shards]
        if fewer := tuple(o.placement.axis for o in chosen if o.sees_fewer(question)):
            yield [_with(shard, replace(layout, divided_by=fewer)) for shard in shards]


def _is_sentence(dim: Dim) -> bool:
    """Whether merged parts, if there are any, are split before their dim is."""
    return all(p.mode is not Mode.INTERLEAVED for p in dim.placements[1:])


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


_SplitsOf = Callable[[Question, Sequence[Shard], str, int, int], Iterator[_Option]]


def _options(
    question: Question, shards: Sequence[Shard], axis: str, size: int, splits: _SplitsOf
) -> Iterator[_Option]:
    local, whole = shards[0].shape, question.golden.shape
    yield _Option(Placement(axis, Mode.REPLICATED), 0)
    for n in range(len(whole)):
        if local[n] < whole[n]:
            yield from splits(question, shards, axis, size, n)
    if axis == MICROBATCH:
        yield _Option(Placement(axis, Mode.RUNNING), 3)
    if question.may_be_partial:
        yield _Option(Placement(axis, Mode.PARTIAL), 6)
        yield _Option(Placement(axis, Mode.PARTIAL, "avg"), 7)


def _splits(
    question: Question, shards: Sequence[Shard], axis: str, size: int, n: int
) -> Iterator[_Option]:
    yield _Option(Placement(axis), 1, n)
    for num in (2, 3):
        if question.golden.shape[n] % (num * size) == 0:
            parts = tuple(Name(text) for text in _MERGED[:num])
            yield _Option(Placement(axis, Mode.INTERLEAVED), 2, n, parts)
    yield _Option(Placement(axis, Mode.ZIGZAG), 4, n)
    yield _Option(Placement(axis, Mode.CYCLIC), 5, n)
    if any(shard.shape[n] * size > question.golden.shape[n] for shard in shards):
        padded = (Name(f"d{n}", question.golden.shape[n]),)
        yield _Option(Placement(axis), 8, n, padded)


def _merged(
    first: Value, question: Question, shards: Sequence[Shard], axis: str, size: int, n: int
) -> Iterator[_Option]:
    """Parts of unequal sizes merged in dim `n`, such as the q, k and v of grouped queries."""
    del shards
    if found := _merged_sizes(question.golden, first, n, size):
        parts = tuple(Name(text, part) for text, part in zip(_MERGED, found, strict=False))
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
