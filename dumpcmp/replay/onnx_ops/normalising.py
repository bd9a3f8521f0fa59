"""Norms, and those that ONNX Runtime fuses with the sums before them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.onnx_ops.op_table import MICROSOFT, define
from dumpcmp.replay.unreplayable import Unreplayable

_NORMALISES, _COMPOSES = FunctionKind.NORMALISES, FunctionKind.COMPOSES


def _channels(one: Tensor, ndim: int) -> Tensor:
    return one.reshape(-1, *[1] * (ndim - 2))


@define("BatchNormalization", _NORMALISES)
def _batch_norm(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, epsilon: float = 1e-5,
    momentum: float = 0.9, training_mode: int = 0,
) -> Tensor:  # fmt: skip
    del momentum
    if training_mode:
        raise Unreplayable("this form of it is not known")
    return F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)


@define("InstanceNormalization", _NORMALISES)
def _instance_norm(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float = 1e-5) -> Tensor:
    return F.instance_norm(x, None, None, scale, bias, True, 0.0, epsilon)


def _layer_norm(
    x: Tensor, scale: Tensor | None, bias: Tensor | None, axis: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = tuple(range(axis % x.ndim, x.ndim))
    mean = x.mean(dims, keepdim=True)
    var = (x - mean).square().mean(dims, keepdim=True)
    spread = torch.rsqrt(var + epsilon)
    made = (x - mean) * spread
    made = made if scale is None else made * scale
    return (made if bias is None else made + bias), mean, spread


@define("LayerNormalization", _NORMALISES)
def _plain_layer_norm(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    del stash_type
    return _layer_norm(x, scale, bias, axis, epsilon)


def _rms(x: Tensor, scale: Tensor | None, axis: int, epsilon: float) -> tuple[Tensor, Tensor]:
    dims = tuple(range(axis % x.ndim, x.ndim))
    spread = torch.rsqrt(x.square().mean(dims, keepdim=True) + epsilon)
    return (x * spread if scale is None else x * spread * scale), spread


@define("RMSNormalization SimplifiedLayerNormalization", _NORMALISES)
def _rms_norm(
    x: Tensor, scale: Tensor, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Tensor, Tensor]:
    del stash_type
    return _rms(x, scale, axis, epsilon)


@define("SkipLayerNormalization", _NORMALISES, domain=MICROSOFT)
def _skip_layer_norm(
    x: Tensor, skip: Tensor, gamma: Tensor, beta: Tensor | None = None, bias: Tensor | None = None,
    epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    summed = x + skip if bias is None else x + skip + bias
    made, mean, spread = _layer_norm(summed, gamma, beta, -1, epsilon)
    return made, mean, spread, summed


@define("SkipSimplifiedLayerNormalization", _NORMALISES, domain=MICROSOFT)
def _skip_rms_norm(
    x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, epsilon: float = 1e-12
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    summed = x + skip if bias is None else x + skip + bias
    made, spread = _rms(summed, gamma, -1, epsilon)
    return made, torch.zeros_like(spread), spread, summed


@define("EmbedLayerNormalization", _NORMALISES, domain=MICROSOFT)
def embedded_norm(
    ids: Tensor, segments: Tensor | None, words: Tensor, places: Tensor, kinds: Tensor | None,
    gamma: Tensor, beta: Tensor, mask: Tensor | None = None, at: Tensor | None = None,
    epsilon: float = 1e-12, mask_index_type: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The norm of words, places and kinds that ids stand for; how long each row is; the sum."""
    del mask_index_type
    where = torch.arange(ids.shape[1], device=ids.device) if at is None else at.long()
    summed = words[ids.long()] + places[where]
    if segments is not None and kinds is not None:
        summed = summed + kinds[segments.long()]
    seen = torch.zeros(ids.shape[:1], dtype=torch.int32) if mask is None else mask.sum(1).int()
    return _layer_norm(summed, gamma, beta, -1, epsilon)[0], seen, summed


@define("GroupNormalization", _NORMALISES, versioned=True)
def _group_norm(
    x: Tensor, scale: Tensor, bias: Tensor, num_groups: int, epsilon: float = 1e-5,
    stash_type: int = 1, opset: int = 21,
) -> Tensor:  # fmt: skip
    del stash_type
    if opset < 21 and scale.numel() == num_groups != x.shape[1]:
        scale, bias = (each.repeat_interleave(x.shape[1] // num_groups) for each in (scale, bias))
    return F.group_norm(x, num_groups, scale, bias, epsilon)


@define("MeanVarianceNormalization", _NORMALISES)
def _moments_norm(x: Tensor, axes: Any = (0, 2, 3)) -> Tensor:
    dims = tuple(axes)
    mean = x.mean(dims, keepdim=True)
    return (x - mean) / ((x - mean).square().mean(dims, keepdim=True).sqrt() + 1e-9)


@define("LpNormalization", _COMPOSES)
def _lp_norm(x: Tensor, axis: int = -1, p: int = 2) -> Tensor:
    size = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    return torch.where(size == 0, 0.0, x / size)


@define("LRN", _COMPOSES)
def _lrn(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = F.pad(x.square(), (0, 0) * (x.ndim - 2) + (before, after))
    total = squares.unfold(1, size, 1).sum(-1)
    return x / (bias + alpha / size * total).pow(beta)
