"""Which indices of a dim each rank holds: the arithmetic behind unsharding."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.layouts import AS_GOLDEN, Dim, Layout, Mode, Placement

Shape = tuple[int, ...]
Corner = tuple[int, ...]  # indices on some axes, in a fixed order of the axes
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank holds of a value, without the elements. Its layout says where the rank is."""

    rank: int
    shape: Shape
    layout: Layout
    digest: str = ""  # equal digests: equal replicas, without a look at them


@dataclass(frozen=True, slots=True)
class Run:
    """`length` consecutive indices of a dim: from `whole` in the whole, from `local` in a shard."""

    whole: int
    local: int
    length: int


Region = tuple[tuple[Run, ...], ...]  # the runs of every dim
DimRegions = tuple[dict[Corner, tuple[Run, ...]], int]  # of one dim, and the whole's size there


def corners(axes: Mapping[str, int], chosen: Sequence[str]) -> Iterator[Corner]:
    """All combinations of indices on the `chosen` axes, the last axis fastest."""
    return itertools.product(*(range(axes[axis]) for axis in chosen))


def named(axes: Mapping[str, int], chosen: Sequence[str], corner: Corner) -> str:
    """`corner` in words: ``tp:1/2``."""
    where = zip(chosen, corner, strict=True)
    return " ".join(f"{axis}:{index}/{axes[axis]}" for axis, index in where)


def regions(
    n: int, dim: Dim, shards: Sequence[Shard], axes: Mapping[str, int], golden: int | None
) -> DimRegions:
    """Where each corner of `dim`'s axes lies in the whole, and the whole's size along it."""
    mine = [p.axis for p in dim.placements]
    sizes = _local_sizes(n, mine, shards)
    if all(p.mode is Mode.SHARD for p in dim.placements):
        runs, total = _consecutive(sizes, corners(axes, mine))
    else:
        runs, total = _scattered(dim, sizes, axes)
    limit = golden if dim.size == AS_GOLDEN else dim.size
    if limit is None or limit >= total:
        return runs, total
    return {corner: _cut(some, limit) for corner, some in runs.items()}, limit


def _local_sizes(n: int, mine: Sequence[str], shards: Sequence[Shard]) -> dict[Corner, int]:
    sizes: dict[Corner, int] = {}
    for one in shards:
        at = {c.axis: c.index for c in one.layout.place}
        size = sizes.setdefault(tuple(at[axis] for axis in mine), one.shape[n])
        if size != one.shape[n]:
            raise LayoutError(
                f"rank {one.rank} holds {one.shape[n]} of dim {n}, another rank at the same place "
                f"of {' '.join(mine) or 'the mesh'} holds {size}",
                hint=f"is dim {n} sharded over an axis that the layout does not name?",
            )
    return sizes


def _consecutive(sizes: Mapping[Corner, int], order: Iterator[Corner]) -> DimRegions:
    """Shards of any sizes one after another; a missing one is taken to be as large as any."""
    runs: dict[Corner, tuple[Run, ...]] = {}
    start = 0
    for corner in order:
        length = sizes.get(corner, max(sizes.values()))
        runs[corner] = (Run(start, 0, length),)
        start += length
    return runs, start


def _scattered(dim: Dim, sizes: Mapping[Corner, int], axes: Mapping[str, int]) -> DimRegions:
    mine = [p.axis for p in dim.placements]
    total = sum(sizes.get(corner, max(sizes.values())) for corner in corners(axes, mine))
    if len(dim.names) > 1 and dim.size:
        total = dim.size
    runs = {}
    for corner in corners(axes, mine):
        held = indices(dim, total, axes, dict(zip(mine, corner, strict=True)))
        if len(held) != sizes.get(corner, len(held)):
            raise LayoutError(
                f"'{dim}' gives {named(axes, mine, corner)} {len(held)} of {total}, "
                f"but it holds {sizes[corner]}",
                hint="state the sizes of merged parts: (q=64 k=16 v=16)[tp:interleaved]",
            )
        runs[corner] = tuple(_runs(held))
    return runs, total


def _cut(runs: Sequence[Run], limit: int) -> tuple[Run, ...]:
    return tuple(
        Run(run.whole, run.local, min(run.length, limit - run.whole))
        for run in runs
        if run.whole < limit
    )


def _runs(held: Indices) -> Iterator[Run]:
    starts = np.flatnonzero(np.diff(held, prepend=-2) != 1)
    for start, end in zip(starts, [*starts[1:], len(held)], strict=True):
        yield Run(int(held[start]), int(start), int(end - start))


def indices(dim: Dim, size: int, axes: Mapping[str, int], at: Mapping[str, int]) -> Indices:
    """Which indices of a dim of `size` the rank at `at` holds, in the order that it holds them."""
    held = np.arange(size)
    for placement in dim.placements:
        held = _share(held, dim, placement, axes[placement.axis], at[placement.axis])
    return held


def _share(held: Indices, dim: Dim, placement: Placement, num: int, index: int) -> Indices:
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


def _parts(held: Indices, dim: Dim) -> list[Indices]:
    if dim.size is None and len(held) % len(dim.names):
        raise LayoutError(
            f"'{dim}': {len(held)} is not {len(dim.names)} equal parts",
            hint="state their sizes: (q=64 k=16 v=16)[tp:interleaved]",
        )
    if dim.size is None:
        return np.split(held, len(dim.names))
    ends = np.cumsum([name.size or 0 for name in dim.names])
    return np.split(held, ends[:-1])


def _chunks(held: Indices, num: int) -> list[Indices]:
    """`held` in `num` consecutive chunks as torch.chunk cuts them, empty ones included."""
    step = max(1, -(-len(held) // num))
    return [held[i * step : (i + 1) * step] for i in range(num)]
