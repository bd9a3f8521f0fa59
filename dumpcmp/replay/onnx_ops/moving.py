"""Ops that move elements: reshapes, slices, gathers, and what makes tensors of sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.onnx_ops.op_table import MICROSOFT, define, dtype_numbered, number, numbers
from dumpcmp.replay.unreplayable import Unreplayable

_MOVES, _CHOOSES, _SUMS = FunctionKind.MOVES, FunctionKind.CHOOSES, FunctionKind.SUMS


@define("Reshape", _MOVES)
def _reshape(x: Tensor, shape: Tensor, allowzero: int = 0) -> Tensor:
    sizes = numbers(shape)
    if not allowzero:
        sizes = [x.shape[at] if size == 0 else size for at, size in enumerate(sizes)]
    return x.reshape(sizes)


@define("Transpose", _MOVES)
def _transpose(x: Tensor, perm: Sequence[int] | None = None) -> Tensor:
    return x.permute(*(perm if perm is not None else reversed(range(x.ndim))))


@define("Flatten", _MOVES)
def _flatten(x: Tensor, axis: int = 1) -> Tensor:
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@define("Squeeze", _MOVES)
def _squeeze(x: Tensor, axes: Tensor | None = None) -> Tensor:
    dims = numbers(axes) if axes is not None else [d for d, n in enumerate(x.shape) if n == 1]
    return x.squeeze(tuple(dims)) if dims else x.clone()


@define("Unsqueeze", _MOVES)
def _unsqueeze(x: Tensor, axes: Tensor) -> Tensor:
    dims = numbers(axes)
    ndim = x.ndim + len(dims)
    for dim in sorted(dim % ndim for dim in dims):
        x = x.unsqueeze(dim)
    return x


@define("Concat", _MOVES)
def _concat(*given: Tensor, axis: int) -> Tensor:
    return torch.cat(given, axis)


@define("Loop Scan", _MOVES)
def _stacked(*given: Tensor, axis: int = 0) -> Tensor:
    """What the iterations gave, in one tensor: their nodes are calls of their own."""
    return torch.stack(given, axis)


@define("Split", _MOVES)
def _split(
    x: Tensor, split: Tensor | None = None, axis: int = 0, num_outputs: int = 0
) -> tuple[Tensor, ...]:
    if split is not None:
        return torch.split(x, numbers(split), axis)
    if not num_outputs:
        raise Unreplayable("how many parts it makes is not told")
    return torch.split(x, -(-x.shape[axis] // num_outputs), axis)


@define("Slice", _MOVES)
def _slice(
    x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None
) -> Tensor:
    begins, stops = numbers(starts), numbers(ends)
    dims = numbers(axes) if axes is not None else list(range(len(begins)))
    strides = numbers(steps) if steps is not None else [1] * len(begins)
    for begin, stop, dim, step in zip(begins, stops, dims, strides, strict=True):
        places = range(x.shape[dim])[slice(begin, stop, step)]
        if step > 0:
            x = x[(slice(None),) * (dim % x.ndim) + (slice(begin, stop, step),)]
        else:
            x = x.index_select(dim, torch.tensor(list(places), dtype=torch.int64, device=x.device))
    return x


@define("Gather", _MOVES)
def _gather(x: Tensor, places: Tensor, axis: int = 0) -> Tensor:
    at = places.long()
    at = torch.where(at < 0, at + x.shape[axis], at)
    axis %= x.ndim
    found = x.index_select(axis, at.reshape(-1))
    return found.reshape(*x.shape[:axis], *at.shape, *x.shape[axis + 1 :])


@define("GatherElements", _MOVES)
def _gather_elements(x: Tensor, places: Tensor, axis: int = 0) -> Tensor:
    at = places.long()
    return x.gather(axis, torch.where(at < 0, at + x.shape[axis], at))


@define("GatherND", _MOVES)
@define("GatherND", _MOVES, domain=MICROSOFT)
def _gather_nd(x: Tensor, places: Tensor, batch_dims: int = 0) -> Tensor:
    batch = x.shape[:batch_dims]
    num = math.prod(batch)
    flat, at = (
        x.reshape(num, *x.shape[batch_dims:]),
        places.long().reshape(num, -1, places.shape[-1]),
    )
    found = [flat[i][tuple(at[i].unbind(-1))] for i in range(num)]
    rest = x.shape[batch_dims + places.shape[-1] :]
    return torch.stack(found).reshape(*places.shape[:-1], *rest)


def _combined(x: Tensor, at: Tensor, updates: Tensor, axis: int, reduction: str) -> Tensor:
    if reduction in ("", "none"):
        return x.scatter(axis, at, updates)
    how = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}[reduction]
    return x.scatter_reduce(axis, at, updates, how)


@define("ScatterElements Scatter", _SUMS)
def _scatter(
    x: Tensor, places: Tensor, updates: Tensor, axis: int = 0, reduction: str = "none"
) -> Tensor:
    at = places.long()
    return _combined(x, torch.where(at < 0, at + x.shape[axis], at), updates, axis, reduction)


@define("ScatterND", _SUMS)
def _scatter_nd(x: Tensor, places: Tensor, updates: Tensor, reduction: str = "none") -> Tensor:
    depth = places.shape[-1]
    rest = math.prod(x.shape[depth:])
    at = places.long().reshape(-1, depth)
    flat = torch.zeros(at.shape[0], dtype=torch.int64, device=at.device)
    for column, size in enumerate(x.shape[:depth]):
        part = at[:, column]
        flat = flat * size + torch.where(part < 0, part + size, part)
    rows = x.reshape(-1, rest)
    spread = flat[:, None].expand(-1, rest)
    return _combined(rows, spread, updates.reshape(-1, rest), 0, reduction).reshape(x.shape)


def _broadcast(one: list[int], other: list[int]) -> list[int]:
    """The shape that both fit into: sizes of 1 stretch."""
    ndim = max(len(one), len(other))
    shapes = [[1] * (ndim - len(sizes)) + sizes for sizes in (one, other)]
    return [b if a == 1 else a for a, b in zip(*shapes, strict=True)]


@define("Expand", _MOVES)
def _expand(x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(_broadcast(list(x.shape), numbers(shape))).clone()


@define("Tile", _MOVES)
def _tile(x: Tensor, repeats: Tensor) -> Tensor:
    return x.repeat(numbers(repeats))


@define("Pad", _MOVES)
def _pad(
    x: Tensor, pads: Tensor, value: Tensor | None = None, axes: Tensor | None = None,
    mode: str = "constant",
) -> Tensor:  # fmt: skip
    sizes = numbers(pads)
    dims = [dim % x.ndim for dim in numbers(axes)] if axes is not None else list(range(x.ndim))
    half = len(sizes) // 2
    for dim, before, after in zip(dims, sizes[:half], sizes[half:], strict=True):
        x = _padded(x, dim, before, after, mode, number(value))
    return x


def _padded(x: Tensor, dim: int, before: int, after: int, mode: str, value: float) -> Tensor:
    if before < 0 or after < 0:
        x = x.narrow(dim, max(0, -before), x.shape[dim] + min(0, before) + min(0, after))
    before, after = max(0, before), max(0, after)
    if not before and not after:
        return x
    size = x.shape[dim]
    at = torch.arange(-before, size + after, device=x.device)
    if mode == "constant":
        sides = [
            x.new_full((*x.shape[:dim], n, *x.shape[dim + 1 :]), value) for n in (before, after)
        ]
        return torch.cat([sides[0], x, sides[1]], dim)
    if mode == "edge":
        at = at.clamp(0, size - 1)
    elif mode == "wrap":
        at = at % size
    else:  # reflect
        period = max(1, 2 * (size - 1))
        at = at % period
        at = torch.where(at >= size, period - at, at)
    return x.index_select(dim, at)


@define("Shape", _MOVES)
def _shape(x: Tensor, start: int = 0, end: int | None = None) -> Tensor:
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64)


@define("Size", _MOVES)
def _size(x: Tensor) -> Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64)


@define("ConstantOfShape", _MOVES)
def _constant_of_shape(shape: Tensor, value: Tensor | None = None) -> Tensor:
    sizes = numbers(shape)
    if value is None:
        return torch.zeros(sizes, dtype=torch.float32)
    return torch.full(sizes, number(value), dtype=value.dtype)


@define("Range", _MOVES)
@define("Range", _MOVES, domain=MICROSOFT)
def _range(start: Tensor, limit: Tensor, delta: Tensor | None = None) -> Tensor:
    step = delta if delta is not None else torch.ones_like(start)
    if start.is_floating_point():
        count = max(0, math.ceil((number(limit) - number(start)) / number(step)))
        return start.reshape(()) + torch.arange(count, dtype=start.dtype) * step.reshape(())
    begin, stop, by = (numbers(each)[0] for each in (start, limit, step))
    return torch.arange(
        begin, max(begin, stop) if by > 0 else min(begin, stop), by, dtype=start.dtype
    )


@define("EyeLike", _MOVES)
def _eye_like(x: Tensor, k: int = 0, dtype: int = 1) -> Tensor:
    rows, columns = x.shape
    made = torch.arange(columns)[None, :] - torch.arange(rows)[:, None] == k
    return made.to(dtype_numbered(dtype))


@define("OneHot", _MOVES)
def _one_hot(places: Tensor, depth: Tensor, values: Tensor, axis: int = -1) -> Tensor:
    size = int(number(depth))
    at = places.long()
    at = torch.where(at < 0, at + size, at).unsqueeze(axis)
    row = [1] * at.ndim
    row[axis] = size
    is_here = at == torch.arange(size, device=at.device).reshape(row)
    return torch.where(is_here, values[1], values[0])


@define("NonZero", _CHOOSES)
def _non_zero(x: Tensor) -> Tensor:
    return x.nonzero().mT


@define("Compress", _CHOOSES)
def _compress(x: Tensor, chosen: Tensor, axis: int | None = None) -> Tensor:
    flat = x.reshape(-1) if axis is None else x
    dim = 0 if axis is None else axis
    return flat.index_select(dim, chosen.nonzero()[:, 0])


@define("Unique", _CHOOSES)
def _unique(x: Tensor, axis: int | None = None, sorted: int = 1) -> tuple[Tensor, ...]:
    if not sorted:
        raise Unreplayable("its order is not told")
    values, inverse, counts = torch.unique(
        x, sorted=True, return_inverse=True, return_counts=True, dim=axis
    )
    flat = inverse.reshape(-1)
    first = torch.full_like(counts, flat.numel()).scatter_reduce(
        0, flat, torch.arange(flat.numel()), "amin"
    )
    return values, first, flat, counts


@define("TopK", _CHOOSES)
def _topk(
    x: Tensor, k: Tensor, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    del sorted
    found = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
    count = int(number(k))
    return found.values.narrow(axis, 0, count), found.indices.narrow(axis, 0, count)


@define("Trilu", _MOVES)
@define("Trilu", _MOVES, domain=MICROSOFT)
def _trilu(x: Tensor, k: Tensor | None = None, upper: int = 1) -> Tensor:
    by = int(number(k))
    return torch.triu(x, by) if upper else torch.tril(x, by)


@define("DepthToSpace", _MOVES)
def _depth_to_space(x: Tensor, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        parts = x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, c // (b * b), b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, c // (b * b), h * b, w * b)


@define("SpaceToDepth", _MOVES)
def _space_to_depth(x: Tensor, blocksize: int) -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    return (
        x.reshape(n, c, h // b, b, w // b, b)
        .permute(0, 3, 5, 1, 2, 4)
        .reshape(n, c * b * b, h // b, w // b)
    )


@define("ReverseSequence", _MOVES)
def _reverse_sequence(
    x: Tensor, lengths: Tensor, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    found = x.movedim((batch_axis, time_axis), (0, 1)).clone()
    for row, length in enumerate(numbers(lengths)):
        found[row, :length] = found[row, :length].flip(0)
    return found.movedim((0, 1), (batch_axis, time_axis))


@define("CumSum", FunctionKind.SCANS)
def _cumsum(x: Tensor, axis: Tensor, exclusive: int = 0, reverse: int = 0) -> Tensor:
    dim = int(number(axis))
    found = x.flip(dim) if reverse else x
    total = torch.cumsum(found, dim, dtype=x.dtype)
    total = total - found if exclusive else total
    return total.flip(dim) if reverse else total


@define("CumProd", FunctionKind.SCANS)
def _cumprod(x: Tensor, axis: Tensor, exclusive: int = 0, reverse: int = 0) -> Tensor:
    dim = int(number(axis))
    found = x.flip(dim) if reverse else x
    if exclusive:
        ones = torch.ones_like(found.narrow(dim, 0, min(1, found.shape[dim])))
        found = torch.cat([ones, found], dim).narrow(dim, 0, x.shape[dim])
    total = torch.cumprod(found, dim, dtype=x.dtype)
    return total.flip(dim) if reverse else total


@define("TensorScatter", _MOVES)
def _tensor_scatter(
    past: Tensor, update: Tensor, starts: Tensor | None = None, axis: int = -2,
    mode: str = "linear",
) -> Tensor:  # fmt: skip
    axis %= past.ndim
    length, count = past.shape[axis], update.shape[axis]
    found = past.clone()
    for row in range(past.shape[0]):
        start = 0 if starts is None else int(starts[row])
        at = torch.arange(start, start + count, device=past.device)
        at = at % length if mode == "circular" else at
        found[row] = found[row].index_copy(axis - 1, at, update[row])
    return found


@define("Col2Im", _SUMS)
def _col2im(
    x: Tensor, image: Tensor, block: Tensor, dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    sizes = numbers(image)
    pads = list(pads or [0] * 2 * len(sizes))
    half = len(pads) // 2
    if pads[:half] != pads[half:] or len(sizes) != 2:
        raise Unreplayable("this form of it is not known")
    ones = [1] * len(sizes)
    fold: Any = F.fold
    made: Tensor = fold(
        x, sizes, numbers(block), list(dilations or ones), pads[:half], list(strides or ones)
    )
    return made
