"""Every layout by which shards can be a value of a given shape, likeliest first, without a value.

Many values of a run have one outline: what there is to try is thought out once for all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from threading import Lock

from dumpcmp.align.mesh.regions import Shape, Shard
from dumpcmp.align.mesh.unshard import Plan, axis_sizes, plan_unshard
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.layouts import MICROBATCH, Dim, Layout, Mesh, Mode, Name, Placement

MERGED = ("a", "b", "c", "d", "e", "f", "g", "h")  # names for parts that nobody named
_REMEMBERED = 256  # outlines
_SMALL = 16  # shards whose plans take little memory

MergedSizes = Callable[[int, int], Shape | None]  # of the parts in a dim, over so many ranks


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of shards and of the whole without an element of them."""

    shards: tuple[Shard, ...]  # without digests
    shape: Shape  # of the whole
    may_be_partial: bool
    may_be_scaled: bool
    sample_dim: int = 0  # that samples lie along, of what may be scaled


@dataclass(frozen=True, slots=True)
class Conceivable:
    """A layout that gives a whole of the right shape on a mesh of `sizes`, and how."""

    layout: Layout
    sizes: Shape
    plan: Plan


@dataclass(slots=True, eq=False)
class _Listed:
    """Candidates, found as far as anybody has asked for them."""

    source: Iterator[Conceivable]
    found: list[Conceivable] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def __iter__(self) -> Iterator[Conceivable]:
        for n in itertools.count():
            with self.lock:
                if n == len(self.found):
                    self.found.extend(itertools.islice(self.source, 1))
                if n == len(self.found):
                    return
            yield self.found[n]


def candidates(outline: Outline) -> Iterable[Conceivable]:
    """Every layout that gives the whole's shape, but for parts of unequal sizes."""
    return _remembered(outline) if len(outline.shards) <= _SMALL else _in_equal_parts(outline)


def supposed(outline: Outline, layout: Layout) -> Iterator[Conceivable]:
    """`layout` itself, on every mesh on which it gives the whole's shape."""
    few = len(outline.shards) <= _SMALL
    yield from _once_supposed(outline, layout) if few else _supposed(outline, layout)


@lru_cache(_REMEMBERED)
def _once_supposed(outline: Outline, layout: Layout) -> _Listed:
    return _Listed(_supposed(outline, layout))


def _supposed(outline: Outline, layout: Layout) -> Iterator[Conceivable]:
    if not outline.may_be_partial and any(p.mode is Mode.PARTIAL for p in layout.over):
        return  # the same terms may lie so elsewhere: here they must have been added up
    for shards in _meshes(outline.shards):
        if layout.axes <= axis_sizes(shards).keys():
            yield from _planned(outline, shards, [layout])


def with_unequal_parts(outline: Outline, merged_sizes: MergedSizes) -> Iterator[Conceivable]:
    """Layouts with parts of unequal sizes merged in a dim, such as q, k and v of grouped heads."""

    def merged(axis: str, size: int, n: int) -> Iterator[_Option]:
        if found := merged_sizes(n, size):
            parts = tuple(map(Name, MERGED, found))
            yield _Option(Placement(axis, Mode.INTERLEAVED), 3, n, parts)

    for shards in _meshes(outline.shards):
        chosen = [c for c in _choices(outline, shards, merged) if any(len(o.names) > 1 for o in c)]
        if chosen:
            yield from _planned(outline, shards, _layouts(outline, shards, chosen))


@lru_cache(_REMEMBERED)
def _remembered(outline: Outline) -> _Listed:
    return _Listed(_in_equal_parts(outline))


def _in_equal_parts(outline: Outline) -> Iterator[Conceivable]:
    for shards in _meshes(outline.shards):
        chosen = _choices(outline, shards, partial(_splits, outline))
        yield from _planned(outline, shards, _layouts(outline, shards, chosen))


def _planned(
    outline: Outline, shards: Sequence[Shard], layouts: Iterable[Layout]
) -> Iterator[Conceivable]:
    """Those of `layouts` by which `shards` are a whole of the right shape, each once."""
    sizes = tuple(axis_sizes(shards).values())
    known = [replace(s, layout=Layout(coordinates=s.layout.known().coordinates)) for s in shards]
    seen: set[Layout] = set()
    for layout in layouts:
        if layout not in seen:
            seen.add(layout)
            if plan := _plan(outline, known, layout):
                yield Conceivable(layout, sizes, plan)


def _plan(outline: Outline, shards: Sequence[Shard], layout: Layout) -> Plan | None:
    words = layout.dims, layout.over, layout.divided_by
    said = [Shard(s.rank, s.shape, Layout(*words, s.layout.coordinates)) for s in shards]
    try:
        plan = plan_unshard(said, outline.shape)
    except LayoutError:
        return None  # the shards' shapes rule it out
    return plan if plan.shape == outline.shape and not plan.missing else None


def _meshes(shards: tuple[Shard, ...]) -> Iterable[list[Shard]]:
    """The shards as they say where they are; where they do not, on every mesh that they can be.

    That is one axis of all ranks, then two axes whose sizes multiply to their number.
    """
    return _once_placed(shards) if len(shards) <= _SMALL else _placed(shards)


@lru_cache(_REMEMBERED)
def _once_placed(shards: tuple[Shard, ...]) -> list[list[Shard]]:
    return list(_placed(shards))


def _placed(shards: tuple[Shard, ...]) -> Iterator[list[Shard]]:
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


@dataclass(frozen=True, slots=True)
class _Option:
    """One thing that one axis may do with the value; the likelier, the less surprise."""

    placement: Placement
    surprise: int
    dim: int | None = None
    names: tuple[Name, ...] = ()

    def sees_fewer(self, outline: Outline) -> bool:
        """Whether a mean over this axis's samples may have made the values too large.

        Not the last of running sums: that is the gradient which an optimizer takes.
        """
        return outline.may_be_scaled and self.dim == outline.sample_dim

    def applied(self, layout: Layout) -> Layout:
        if self.dim is None:
            return replace(layout, over=(*layout.over, self.placement))
        dim = layout.dims[self.dim]
        dim = Dim(self.names or dim.names, (*dim.placements, self.placement))
        return replace(layout, dims=(*layout.dims[: self.dim], dim, *layout.dims[self.dim + 1 :]))


_Splits = Callable[[str, int, int], Iterator[_Option]]  # of an axis, its size and a dim


def _choices(
    outline: Outline, shards: Sequence[Shard], splits: _Splits
) -> Iterable[tuple[_Option, ...]]:
    """What the axes that nobody spoke about can do together, likeliest first."""
    sizes = axis_sizes(shards)
    if any(len(shard.shape) != len(outline.shape) for shard in shards):
        return []
    options = [list(_options(outline, a, sizes[a], splits)) for a in shards[0].layout.open_axes]
    return sorted(itertools.product(*options), key=lambda c: sum(o.surprise for o in c))


def _layouts(
    outline: Outline, shards: Sequence[Shard], choices: Iterable[tuple[_Option, ...]]
) -> Iterator[Layout]:
    base, ndim = shards[0].layout, len(outline.shape)
    dims = base.expanded(ndim).dims or tuple(Dim((Name(f"d{n}"),)) for n in range(ndim))
    if len(dims) != ndim:
        return
    for chosen in choices:
        layout = Layout(dims, base.over, base.divided_by)
        for option in chosen:
            layout = option.applied(layout)
        if any(p.mode is Mode.INTERLEAVED for dim in layout.dims for p in dim.placements[1:]):
            continue  # merged parts are split before their dim is
        yield layout
        if fewer := tuple(o.placement.axis for o in chosen if o.sees_fewer(outline)):
            yield replace(layout, divided_by=fewer)


def _options(outline: Outline, axis: str, size: int, splits: _Splits) -> Iterator[_Option]:
    yield _Option(Placement(axis, Mode.REPLICATED), 0)
    for n, whole in enumerate(outline.shape):
        if any(shard.shape[n] < whole for shard in outline.shards):  # the first may hold all of it
            yield from splits(axis, size, n)
    if axis == MICROBATCH:
        yield _Option(Placement(axis, Mode.RUNNING), 3)
        yield _Option(Placement(axis, Mode.REWINDING), 4)
    if outline.may_be_partial:
        yield _Option(Placement(axis, Mode.PARTIAL), 6)
        yield _Option(Placement(axis, Mode.PARTIAL, "avg"), 7)


def _splits(outline: Outline, axis: str, size: int, n: int) -> Iterator[_Option]:
    whole = outline.shape[n]
    for mode, surprise in ((Mode.SHARD, 1), (Mode.ZIGZAG, 4), (Mode.CYCLIC, 5)):
        yield _Option(Placement(axis, mode), surprise, n)
    for num in (2, 3):
        if whole % (num * size) == 0:
            yield _Option(Placement(axis, Mode.INTERLEAVED), 2, n, tuple(map(Name, MERGED[:num])))
    if any(shard.shape[n] * size > whole for shard in outline.shards):
        yield _Option(Placement(axis), 8, n, (Name(f"d{n}", whole),))
