"""Which indices of the whole each rank holds: the arithmetic behind unsharding."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.layouts import (
    AS_GOLDEN,
    Coordinate,
    Coordinates,
    Dim,
    Layout,
    Mode,
    Placement,
    parse_layout,
)
from dumpcmp.nouns.quickly import quickly_made
from dumpcmp.nouns.value import Integers, Portion

Shape = tuple[int, ...]


@quickly_made
@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank holds of a value, without the elements. Its layout says where the rank is."""

    rank: int
    shape: Shape
    layout: Layout
    digest: str = ""  # equal digests: equal replicas, without a look at them


@dataclass(frozen=True, slots=True)
class Stretch:
    """`length` consecutive indices of a dim: from `whole` in the whole, from `local` in a shard."""

    whole: int
    local: int
    length: int


Region = tuple[tuple[Stretch, ...], ...]  # the stretches of every dim
DimRegions = tuple[dict[Coordinates, tuple[Stretch, ...]], int]  # and the whole's size there


def corners(axes: Mapping[str, int], chosen: Sequence[str]) -> Iterator[Coordinates]:
    """All places on the `chosen` of the `axes`, whose sizes are given; the last axis fastest."""
    return itertools.product(
        *([Coordinate(axis, i, axes[axis]) for i in range(axes[axis])] for axis in chosen)
    )


def regions(
    n: int, dim: Dim, shards: Sequence[Shard], axes: Mapping[str, int], golden: int | None
) -> DimRegions:
    """Where each corner of `dim`'s axes lies in the whole, and the whole's size along it."""
    sizes = _local_sizes(n, dim, shards)
    some = max(sizes.values())  # a missing shard is taken to be as large as any
    everywhere = {corner: sizes.get(corner, some) for corner in corners(axes, dim.axes)}
    if all(p.mode is Mode.SHARD for p in dim.placements):
        found, total = _consecutive(everywhere)
    else:
        found, total = _scattered(dim, everywhere, sizes)
    limit = golden if dim.size == AS_GOLDEN else dim.size
    if limit is None or limit >= total:
        return found, total
    return {corner: _cut(stretches, limit) for corner, stretches in found.items()}, limit


def _local_sizes(n: int, dim: Dim, shards: Sequence[Shard]) -> dict[Coordinates, int]:
    sizes: dict[Coordinates, int] = {}
    for one in shards:
        size = sizes.setdefault(one.layout.at(dim.axes), one.shape[n])
        if size != one.shape[n]:
            raise LayoutError(
                f"rank {one.rank} holds {one.shape[n]} of dim {n}, another rank at the same place "
                f"of {' '.join(dim.axes) or 'the mesh'} holds {size}",
                hint=f"is dim {n} sharded over an axis that the layout does not name?",
            )
    return sizes


def _consecutive(sizes: Mapping[Coordinates, int]) -> DimRegions:
    """Shards of any sizes one after another."""
    found: dict[Coordinates, tuple[Stretch, ...]] = {}
    start = 0
    for corner, size in sizes.items():
        found[corner] = (Stretch(start, 0, size),)
        start += size
    return found, start


def _scattered(
    dim: Dim, everywhere: Mapping[Coordinates, int], sizes: Mapping[Coordinates, int]
) -> DimRegions:
    stated = dim.size if len(dim.names) > 1 else None  # a lone name's size only cuts padding
    total = stated or sum(everywhere.values())
    found = {}
    for corner in everywhere:
        held = indices(dim, total, corner)
        if len(held) != sizes.get(corner, len(held)):
            raise LayoutError(
                f"'{dim}' gives {' '.join(map(str, corner))} {len(held)} of {total}, but it holds "
                f"{sizes[corner]}",
                hint="state the sizes of merged parts: (q=64 k=16 v=16)[tp:interleaved]",
            )
        found[corner] = tuple(_stretches(held))
    return found, total


def _cut(stretches: Sequence[Stretch], limit: int) -> tuple[Stretch, ...]:
    return tuple(
        Stretch(one.whole, one.local, min(one.length, limit - one.whole))
        for one in stretches
        if one.whole < limit
    )


def _stretches(held: Integers) -> Iterator[Stretch]:
    """The runs of consecutive indices in `held`; none where a shard is empty."""
    starts = np.flatnonzero(np.diff(held, prepend=-2) != 1)
    for start, end in itertools.pairwise([*starts, len(held)]):
        yield Stretch(int(held[start]), int(start), int(end - start))


def portion_of(layout: str, shape: Shape) -> Portion | None:
    """Which portion of its whole a shard of `shape` is.

    None where the layout does not say, or says something else than the shard's shape.
    """
    told = parse_layout(layout).expanded(len(shape)) if layout else None
    if told is None or told.shape is None or not len(told.dims) == len(shape) == len(told.shape):
        return None
    if not {axis for dim in told.dims for axis in dim.axes} <= {c.axis for c in told.coordinates}:
        return None
    pairs = zip(told.dims, told.shape, strict=True)
    held = Portion(told.shape, tuple(indices(dim, size, told.at(dim.axes)) for dim, size in pairs))
    return held if held.shape == shape else None


def indices(dim: Dim, size: int, at: Coordinates) -> Integers:
    """Which indices of a dim of `size` the rank `at` its axes holds, in the order it has them."""
    held = np.arange(size)
    for placement, coordinate in zip(dim.placements, at, strict=True):
        held = _share(held, dim, placement, coordinate)
    return held


def _share(held: Integers, dim: Dim, placement: Placement, at: Coordinate) -> Integers:
    index, num = at.index, at.size
    match placement.mode:
        case Mode.ZIGZAG:
            pieces = _chunks(held, 2 * num)
            return np.concatenate([pieces[index], pieces[2 * num - 1 - index]])
        case Mode.CYCLIC:
            return held[index::num]
        case Mode.STRIDED:
            pieces = _chunks(held, int(placement.argument))
            return np.concatenate([_chunks(piece, num)[index] for piece in pieces])
        case Mode.INTERLEAVED:
            return np.concatenate([_chunks(part, num)[index] for part in _parts(held, dim)])
        case _:
            return _chunks(held, num)[index]


def _parts(held: Integers, dim: Dim) -> list[Integers]:
    if dim.size is not None:
        return np.split(held, np.cumsum([name.size or 0 for name in dim.names])[:-1])
    if len(held) % len(dim.names):
        raise LayoutError(
            f"'{dim}': {len(held)} is not {len(dim.names)} equal parts",
            hint="state their sizes: (q=64 k=16 v=16)[tp:interleaved]",
        )
    return np.split(held, len(dim.names))


def _chunks(held: Integers, num: int) -> list[Integers]:
    """`held` in `num` consecutive chunks as torch.chunk cuts them, empty ones included."""
    step = max(1, -(-len(held) // num))
    return [held[i * step : (i + 1) * step] for i in range(num)]
