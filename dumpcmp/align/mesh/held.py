"""Which portion of its whole a shard is, as its layout tells."""

from __future__ import annotations

from dumpcmp.align.mesh.regions import Shape, indices
from dumpcmp.nouns.layouts import merge_sizes, parse_layout
from dumpcmp.nouns.value import Portion


def portion_of(layout: str, shape: Shape) -> Portion | None:
    """Which portion of its whole a shard of `shape` is.

    None where the layout does not say, or says something else than the shard's shape.
    """
    told = parse_layout(layout).expanded(len(shape)) if layout else None
    if told is None or told.shape is None or not len(told.dims) == len(shape) == len(told.shape):
        return None
    axes, at = merge_sizes([told.place]), {c.axis: c.index for c in told.place}
    if not {p.axis for dim in told.dims for p in dim.placements} <= at.keys():
        return None
    pairs = zip(told.dims, told.shape, strict=True)
    held = Portion(told.shape, tuple(indices(dim, size, axes, at) for dim, size in pairs))
    return held if held.shape == shape else None
