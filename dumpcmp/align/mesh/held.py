"""Where a shard lies in its whole, as its layout tells: the whole's index of each of its own."""

from __future__ import annotations

from dumpcmp.align.mesh.regions import Indices, Shape, indices
from dumpcmp.nouns.layouts import merge_sizes, parse_layout


def held_indices(layout: str, shape: Shape) -> tuple[Shape, tuple[Indices, ...]] | None:
    """The whole's shape and, for each dim, which of its indices a shard of `shape` holds.

    None where the layout does not say, or says something else than the shard's shape.
    """
    told = parse_layout(layout).expanded(len(shape)) if layout else None
    if told is None or told.shape is None or not len(told.dims) == len(shape) == len(told.shape):
        return None
    axes, at = merge_sizes([told.place]), {c.axis: c.index for c in told.place}
    if not {p.axis for dim in told.dims for p in dim.placements} <= at.keys():
        return None
    pairs = zip(told.dims, told.shape, strict=True)
    dims = tuple(indices(dim, size, axes, at) for dim, size in pairs)
    return (told.shape, dims) if tuple(dim.size for dim in dims) == shape else None
