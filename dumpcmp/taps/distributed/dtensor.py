"""What a DTensor says of itself, as a Layout: mesh, coordinate, placements, global shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.layouts import (
    Coordinate,
    Coordinates,
    Dim,
    Layout,
    Mode,
    Name,
    Placement,
    ReduceOp,
)


def layout_of_spec(spec: Any) -> Layout:
    """The Layout that a DTensorSpec describes, on this rank.

    An axis whose placement has no word in our language, and an axis of the root mesh that the
    DTensor does not span, stay open.
    """
    names = _axis_names(spec.mesh)
    sizes = dict(zip(names, spec.mesh.shape, strict=True))
    dims: list[list[Placement]] = [[] for _ in spec.shape]
    over: list[Placement] = []
    strange = set()
    for axis, placement in reversed(list(zip(names, spec.placements, strict=True))):
        if hasattr(placement, "dim"):  # Shard and _StridedShard
            _insert(dims[placement.dim], axis, getattr(placement, "split_factor", 1), sizes)
        elif getattr(placement, "reduce_op", "") in set(ReduceOp):
            argument = "" if placement.reduce_op == "sum" else placement.reduce_op
            over.insert(0, Placement(axis, Mode.PARTIAL, argument))
        elif not placement.is_replicate():
            strange.add(axis)
    return Layout(
        dims=tuple(Dim((Name(f"d{n}"),), tuple(shares)) for n, shares in enumerate(dims)),
        over=tuple(over),
        coordinates=_coordinates(spec.mesh, names, strange),
        shape=tuple(spec.shape),
    )


def _insert(shares: list[Placement], axis: str, factor: int, sizes: Mapping[str, int]) -> None:
    """Add the shard of `axis` to those of the axes right of it, in the order of splitting.

    A strided shard whose factor is the number of shards right of it was split after them.
    """
    right = math.prod(sizes[share.axis] for share in shares)
    if factor == 1:
        shares.insert(0, Placement(axis))
    elif factor == right:
        shares.append(Placement(axis))
    else:
        shares.insert(0, Placement(axis, Mode.STRIDED, str(factor)))


def _axis_names(mesh: Any) -> tuple[str, ...]:
    return tuple(mesh.mesh_dim_names or (f"mesh{n}" for n in range(mesh.ndim)))


def _coordinates(mesh: Any, names: tuple[str, ...], strange: set[str]) -> Coordinates:
    """Where this rank is on the axes of `mesh`, and on those of the mesh that it is cut from."""
    mine = {c.axis: c.with_share(c.axis not in strange) for c in _here(mesh, names)}
    root = mesh._get_root_mesh()
    root_names = _axis_names(root)
    if root is mesh or not set(names) <= set(root_names):
        return tuple(mine.values())
    return tuple(mine.get(c.axis) or c.with_share(known=False) for c in _here(root, root_names))


def _here(mesh: Any, names: tuple[str, ...]) -> Coordinates:
    at = mesh.get_coordinate()
    if at is None:  # this rank is not on the mesh: it holds nothing of the value
        return ()
    return tuple(Coordinate(n, i, s) for n, i, s in zip(names, at, mesh.shape, strict=True))


def masked(local: Tensor, spec: Any) -> Tensor:
    """`local` without what a row-sharded embedding looked up for ids of other shards.

    Those rows are arbitrary until the reduction; calling the placement's own reduction here
    would use up the mask that the user's next op needs.
    """
    for placement in spec.placements:
        mask = getattr(getattr(placement, "mask_buffer", None), "data", None)
        if mask is not None:
            with torch.no_grad():
                local = local.detach().clone()
                local[mask] = 0
    return local
