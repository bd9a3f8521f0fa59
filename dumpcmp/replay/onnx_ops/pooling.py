"""Windows over images: pooling, resizing, sampling of grids, and ORT's own forms of these."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.onnx_ops.op_table import define, number, numbers
from dumpcmp.replay.onnx_ops.products import activation as behind
from dumpcmp.replay.onnx_ops.products import conv, padded, same_pads
from dumpcmp.replay.unreplayable import Unreplayable

_SUMS, _COMPOSES, _MOVES = FunctionKind.SUMS, FunctionKind.COMPOSES, FunctionKind.MOVES
_LARGEST: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
NCHWC = "com.microsoft.nchwc"
_EXACT_SHARES = 64  # multiples of one in so many are exact in all floats


def _sides(
    x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    pads: Sequence[int], auto_pad: str, ceil_mode: int,
) -> list[int]:  # fmt: skip
    """The border of a pooled image; with `ceil_mode` so much more that the last window is whole."""
    ndim = len(kernel)
    sides = list(pads) or [0] * 2 * ndim
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return same_pads(x.shape[2:], kernel, strides, dilations, auto_pad)
    for dim in range(ndim) if ceil_mode else ():
        span = (kernel[dim] - 1) * dilations[dim] + 1
        seen = x.shape[2 + dim] + sides[dim] + sides[dim + ndim] - span
        count = -(-seen // strides[dim]) + 1
        if (count - 1) * strides[dim] >= x.shape[2 + dim] + sides[dim]:
            count -= 1  # which would begin behind the image
        sides[dim + ndim] += max(0, (count - 1) * strides[dim] - seen)
    return sides


@define("MaxPool", _MOVES)
def max_pool(
    x: Tensor, kernel_shape: Sequence[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: Sequence[int] = (), pads: Sequence[int] = (), storage_order: int = 0,
    strides: Sequence[int] = (),
) -> tuple[Tensor, ...]:  # fmt: skip
    """The largest of each window; of the places of these nothing is told."""
    del storage_order
    ones = [1] * len(kernel_shape)
    strides, dilations = list(strides) or ones, list(dilations) or ones
    sides = _sides(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    least = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    seen = padded(x, kernel_shape, strides, dilations, sides, "", least)
    pool = _LARGEST[len(kernel_shape)]
    if not seen.is_floating_point():
        return (pool(seen.double(), kernel_shape, strides, 0, dilations).to(x.dtype),)
    return (pool(seen, kernel_shape, strides, 0, dilations),)


@define("AveragePool", _SUMS)
def average_pool(
    x: Tensor, kernel_shape: Sequence[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    count_include_pad: int = 0, dilations: Sequence[int] = (), pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    """The mean of each window, of what it has of the image alone unless it counts the border."""
    ndim = len(kernel_shape)
    ones = [1] * ndim
    strides, dilations = list(strides) or ones, list(dilations) or ones
    sides = _sides(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    weight = x.new_ones((1, 1, *kernel_shape))
    flat = x.reshape(-1, 1, *x.shape[2:])
    seen = padded(flat, kernel_shape, strides, dilations, sides, "")
    total = conv(seen, weight, strides=strides, dilations=dilations)
    inside = x.new_ones((1, 1, *x.shape[2:]))
    if count_include_pad:
        border = list(pads) or [0] * 2 * ndim
        inside = padded(inside, kernel_shape, strides, dilations, border, auto_pad, 1.0)
        sides = (
            [side - told for side, told in zip(sides, border, strict=True)]
            if not (auto_pad.startswith("SAME"))
            else [0] * 2 * ndim
        )
    counted = padded(inside, kernel_shape, strides, dilations, sides, "")
    counts = conv(counted, weight, strides=strides, dilations=dilations)
    return (total / counts).reshape(*x.shape[:2], *total.shape[2:])


@define("GlobalAveragePool", _SUMS)
def global_average_pool(x: Tensor) -> Tensor:
    """The mean of each channel."""
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


@define("GlobalMaxPool", _MOVES)
def global_max_pool(x: Tensor) -> Tensor:
    """The largest of each channel."""
    return x.amax(tuple(range(2, x.ndim)), keepdim=True)


@define("LpPool", _COMPOSES)
def _lp_pool(
    x: Tensor, kernel_shape: Sequence[int], p: int = 2, auto_pad: str = "NOTSET",
    ceil_mode: int = 0, dilations: Sequence[int] = (), pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    ones = [1] * len(kernel_shape)
    strides, dilations = list(strides) or ones, list(dilations) or ones
    sides = _sides(x, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    flat = x.abs().pow(p).reshape(-1, 1, *x.shape[2:])
    weight = x.new_ones((1, 1, *kernel_shape))
    total = conv(padded(flat, kernel_shape, strides, dilations, sides, ""), weight,
                 strides=strides, dilations=dilations)  # fmt: skip
    return total.pow(1 / p).reshape(*x.shape[:2], *total.shape[2:])


# Resizing


@define("Resize", _COMPOSES)
def _resize(
    x: Tensor, roi: Tensor | None = None, scales: Tensor | None = None, sizes: Tensor | None = None,
    coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0, extrapolation_value: float = 0.0, mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor", axes: Sequence[int] | None = None,
    antialias: int = 0, keep_aspect_ratio_policy: str = "stretch",
) -> Tensor:  # fmt: skip
    del roi, extrapolation_value
    if antialias or keep_aspect_ratio_policy != "stretch":
        raise Unreplayable("this form of it is not known")
    dims = [dim % x.ndim for dim in axes] if axes is not None else list(range(x.ndim))
    wanted = numbers(sizes) if sizes is not None and sizes.numel() else []
    factors = [float(each) for each in scales.tolist()] if not wanted and scales is not None else []
    truncates = not x.is_floating_point() and mode != "nearest"
    made = x.double() if truncates else x
    for at, dim in enumerate(dims):
        size = wanted[at] if wanted else math.floor(x.shape[dim] * factors[at])
        factor = size / x.shape[dim] if wanted else factors[at]
        if size == x.shape[dim] and factor == 1.0:
            continue
        places = _places(size, x.shape[dim], factor, coordinate_transformation_mode)
        if truncates and bool((places * _EXACT_SHARES % 1).any()):
            raise Unreplayable("which integers it gives hangs on how it rounds floats before that")
        made = _resampled(
            made, dim, places, mode, nearest_mode, cubic_coeff_a, bool(exclude_outside)
        )
    return made.trunc().to(x.dtype) if truncates else made


@define("Upsample", _COMPOSES)
def _upsample(x: Tensor, scales: Tensor, mode: str = "nearest") -> Tensor:
    return _resize(x, None, scales, coordinate_transformation_mode="asymmetric", mode=mode,
                   nearest_mode="floor")  # fmt: skip


def _places(size: int, before: int, factor: float, how: str) -> Tensor:
    """Where each element of the resized dim lies in the dim as it was."""
    at = torch.arange(size, dtype=torch.float64)
    if how == "half_pixel":
        return (at + 0.5) / factor - 0.5
    if how == "pytorch_half_pixel":
        return (at + 0.5) / factor - 0.5 if size > 1 else torch.zeros(1, dtype=torch.float64)
    if how == "align_corners":
        return at * (before - 1) / (size - 1) if size > 1 else torch.zeros(1, dtype=torch.float64)
    if how == "asymmetric":
        return at / factor
    if how == "half_pixel_symmetric":
        adjustment = size / (factor * before)
        return before / 2 * (1 - adjustment) + (at + 0.5) / factor - 0.5
    raise Unreplayable(f"what it does as {how} is not known")


def _resampled(
    x: Tensor, dim: int, places: Tensor, mode: str, nearest: str, a: float, excludes: bool
) -> Tensor:
    before = x.shape[dim]
    if mode == "nearest":
        rounded = {
            "round_prefer_floor": torch.ceil(places - 0.5),
            "round_prefer_ceil": torch.floor(places + 0.5),
            "floor": torch.floor(places),
            "ceil": torch.ceil(places),
        }[nearest]
        return x.index_select(dim, rounded.long().clamp(0, before - 1).to(x.device))
    first = torch.floor(places)
    share = places - first
    if mode == "linear":
        steps: tuple[int, ...] = (0, 1)
        weights = [1 - share, share]
    elif mode == "cubic":
        steps, weights = (-1, 0, 1, 2), _cubic(share, a)
    else:
        raise Unreplayable(f"what it does as {mode} is not known")
    if excludes:
        weights = [
            torch.where((first + step >= 0) & (first + step < before), weight, 0.0)
            for step, weight in zip(steps, weights, strict=True)
        ]
        whole = torch.stack(weights).sum(0)
        weights = [weight / whole for weight in weights]
    row = [1] * x.ndim
    row[dim] = -1
    parts = [
        x.index_select(dim, (first + step).long().clamp(0, before - 1).to(x.device))
        * weight.to(x.dtype).to(x.device).reshape(row)
        for step, weight in zip(steps, weights, strict=True)
    ]
    return torch.stack(parts).sum(0)


def _cubic(share: Tensor, a: float) -> list[Tensor]:
    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(share + 1), near(share), near(1 - share), far(2 - share)]


@define("GridSample", _COMPOSES)
def _grid_sample(
    x: Tensor, grid: Tensor, align_corners: int = 0, mode: str = "linear",
    padding_mode: str = "zeros",
) -> Tensor:  # fmt: skip
    word = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return F.grid_sample(x, grid, word, padding_mode, bool(align_corners))


@define("AffineGrid", _COMPOSES)
def _affine_grid(theta: Tensor, size: Tensor, align_corners: int = 0) -> Tensor:
    return F.affine_grid(theta, numbers(size), bool(align_corners))


@define("RoiAlign", _COMPOSES)
def _roi_align(
    x: Tensor, rois: Tensor, batch: Tensor, coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg", output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:  # fmt: skip
    if mode != "avg":
        raise Unreplayable("this form of it is not known")
    shift = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    found = []
    for roi, image in zip(rois, batch.long().tolist(), strict=True):
        left, top, right, bottom = (float(each) * spatial_scale - shift for each in roi)
        width, height = right - left, bottom - top
        if not shift:
            width, height = max(width, 1.0), max(height, 1.0)
        rows = sampling_ratio or max(1, math.ceil(height / output_height))
        columns = sampling_ratio or max(1, math.ceil(width / output_width))
        ys = _samples(top, height, output_height, rows)
        xs = _samples(left, width, output_width, columns)
        seen = _bilinear(x[image], ys, xs)
        parts = seen.reshape(x.shape[1], output_height, rows, output_width, columns)
        found.append(parts.mean((2, 4)))
    return (
        torch.stack(found) if found else x.new_zeros((0, x.shape[1], output_height, output_width))
    )


def _samples(begin: float, length: float, bins: int, each: int) -> Tensor:
    at = torch.arange(bins * each, dtype=torch.float64)
    return begin + (at + 0.5) * (length / bins / each)


def _bilinear(image: Tensor, ys: Tensor, xs: Tensor) -> Tensor:
    """An image at each pair of places; nothing more than a pixel outside of it."""
    _, height, width = image.shape
    by_row = _line_weights(ys, height).to(image.dtype)
    by_column = _line_weights(xs, width).to(image.dtype)
    return torch.einsum("yh,chw,xw->cyx", by_row, image, by_column)


def _line_weights(at: Tensor, size: int) -> Tensor:
    is_seen = (at >= -1) & (at <= size)
    at = at.clamp(0, size - 1)
    low = torch.floor(at).long()
    high = (low + 1).clamp(max=size - 1)
    share = at - low
    rows = torch.zeros(at.numel(), size, dtype=torch.float64)
    places = torch.arange(at.numel())
    rows[places, low] += 1 - share
    rows[places, high] += share
    return torch.where(is_seen[:, None], rows, 0.0)


@define("NonMaxSuppression", FunctionKind.CHOOSES)
def _non_max_suppression(
    boxes: Tensor, scores: Tensor, most: Tensor | None = None, overlap: Tensor | None = None,
    least: Tensor | None = None, center_point_box: int = 0,
) -> Tensor:  # fmt: skip
    corners = boxes
    if center_point_box:
        centre, half = boxes[..., :2], boxes[..., 2:] / 2
        corners = torch.cat([centre - half, centre + half], -1)
    first = torch.minimum(corners[..., :2], corners[..., 2:])
    last = torch.maximum(corners[..., :2], corners[..., 2:])
    count, limit = int(number(most)), number(overlap)
    found = []
    for image, kind in itertools.product(range(scores.shape[0]), range(scores.shape[1])):
        own = scores[image, kind]
        order = torch.argsort(own, descending=True, stable=True).tolist()
        if least is not None:
            order = [at for at in order if float(own[at]) > number(least)]
        kept: list[int] = []
        for at in order:
            if len(kept) < count and all(
                _overlap(first[image], last[image], at, other) <= limit for other in kept
            ):
                kept.append(at)
        found += [[image, kind, at] for at in kept]
    return torch.tensor(found, dtype=torch.int64).reshape(-1, 3)


def _overlap(first: Tensor, last: Tensor, one: int, other: int) -> float:
    """The share that two boxes have in common."""
    low, high = torch.maximum(first[one], first[other]), torch.minimum(last[one], last[other])
    common = float((high - low).clamp(min=0).prod())
    areas = [float((last[at] - first[at]).prod()) for at in (one, other)]
    whole = sum(areas) - common
    return common / whole if whole else 0.0


# Images that ONNX Runtime has with their channels in blocks are recorded with these in order


@define("ReorderInput", _MOVES, domain=NCHWC)
def _reorder_input(x: Tensor, channels_last: int = 0, block: int = 1) -> Tensor:
    plain = x.movedim(-1, 1) if channels_last else x
    short = -plain.shape[1] % block
    if not short:
        return plain.clone()
    return torch.cat([plain, plain.new_zeros((plain.shape[0], short, *plain.shape[2:]))], 1)


@define("ReorderOutput", _MOVES, domain=NCHWC)
def _reorder_output(x: Tensor, channels: int, channels_last: int = 0) -> Tensor:
    plain = x.narrow(1, 0, channels)
    return plain.movedim(1, -1).clone() if channels_last else plain.clone()


@define("Conv", _COMPOSES, domain=NCHWC)
def _blocked_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, added: Tensor | None = None,
    activation: str = "", activation_params: Sequence[float] = (), **told: Any,
) -> Tensor:  # fmt: skip
    made = conv(x, weight, bias, **told)
    made = made if added is None else made + added
    return behind(activation, *activation_params)(made)


@define("Upsample", _COMPOSES, domain=NCHWC)
def _blocked_upsample(
    x: Tensor, scales: Sequence[int] = (), mode: str = "nearest",
    coordinate_transformation_mode: str = "asymmetric",
) -> Tensor:  # fmt: skip
    factors = torch.tensor([float(each) for each in scales], dtype=torch.float64, device="cpu")
    return _resize(
        x, None, factors, mode=mode, nearest_mode="floor",
        coordinate_transformation_mode=coordinate_transformation_mode,
    )  # fmt: skip


define("MaxPool", _MOVES, domain=NCHWC)(max_pool)
define("AveragePool", _SUMS, domain=NCHWC)(average_pool)
define("GlobalAveragePool", _SUMS, domain=NCHWC)(global_average_pool)
define("GlobalMaxPool", _MOVES, domain=NCHWC)(global_max_pool)
