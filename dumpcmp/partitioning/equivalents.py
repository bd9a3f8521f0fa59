"""Functions of nnScaler's runtime, rewritten, and norms whose parts share their statistics.

A synchronised function is a generator: it yields a tensor, and is sent the sum of what all parts
have yielded. Who carries the sum is not its business: one process adds, ranks all-reduce. It is
given the arguments of the op by name, and runs in training only.
"""

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Exchange = Generator[Tensor, Tensor, Any]


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None, start: int, stop: int
) -> Tensor:
    """Rows of a table of which this part holds ids `start` to `stop`; other ids give zeros."""
    ids = input.long()
    outside = (ids < start) | (ids >= stop)
    local = (ids - start).masked_fill(outside, 0)
    padding = None
    if padding_idx is not None and start <= padding_idx < stop:
        padding = padding_idx - start
    return F.embedding(local, weight, padding).masked_fill(outside.unsqueeze(-1), 0)


def fullslice(input: Tensor, *slicers: Any) -> Tensor:
    """``input[slicers]``."""
    return input[slicers]


def identity(tensor: Tensor) -> Tensor:
    """The tensor as it is."""
    return tensor


def multiref(tensor: Tensor, times: int) -> Tensor | tuple[Tensor, ...]:
    """The tensor, `times` over."""
    return tensor if times == 1 else (tensor,) * times


def to(tensor: Tensor, dtype_or_device: Any) -> Tensor:
    """``tensor.to(dtype_or_device)``."""
    return tensor.to(dtype_or_device)


def accum(*tensors: Tensor) -> Tensor:
    """The sum of all."""
    return torch.stack(tensors).sum(0)


def cat(*tensors: Tensor, dim: int = 0) -> Tensor:
    """``torch.cat`` of tensors that are given one by one."""
    return torch.cat(tensors, dim)


def stack(*tensors: Tensor, dim: int = 0) -> Tensor:
    """``torch.stack`` of tensors that are given one by one."""
    return torch.stack(tensors, dim)


def einsum(*operands: Tensor, equation: str) -> Tensor:
    """``torch.einsum`` with the equation as a keyword."""
    return torch.einsum(equation, *operands)


def layer_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalized_shape: list[int],
    eps: float = 1e-5,
) -> Tensor:
    """``F.layer_norm`` with its parameters first."""
    return F.layer_norm(input, normalized_shape, weight, bias, eps)


def index_select(input: Tensor, index: Tensor, dim: int) -> Tensor:
    """``torch.index_select`` with the dim last."""
    return torch.index_select(input, dim, index)


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """``torch.select_scatter``."""
    return torch.select_scatter(input, src, dim, index)


def nndropout(input: Tensor, p: float = 0.5, inplace: bool = False) -> Tensor:
    """``F.dropout`` in training."""
    return F.dropout(input, p, True, inplace)


def setitem(input: Tensor, *index_and_value: Any) -> Tensor:
    """``input[index] = value``, where the index may be given in pieces."""
    *index, value = index_and_value
    input[index[0] if len(index) == 1 else tuple(index)] = value
    return input


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: list[int],
    dilation: Any,
    groups: int = 1,
) -> Tensor:
    """``F.conv2d`` with two paddings, or four: top, bottom, left, right."""
    sides = list(padding) if len(padding) == 4 else [p for p in padding for _ in range(2)]
    padded = F.pad(input, sides[2:] + sides[:2])
    return F.conv2d(padded, weight, bias, stride, 0, dilation, groups)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: list[int],
    dilation: Any,
    groups: int = 1,
) -> Tensor:
    """``F.conv3d`` with one padding for both sides of each dim."""
    return F.conv3d(input, weight, bias, stride, padding, dilation, groups)


def batchnorm2d(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    num_batches_tracked: Tensor | None = None,
    momentum: float | None = 0.1,
    training: bool = True,
    track_running_stats: bool = True,
    eps: float = 1e-5,
    process_group: Any = None,  # noqa: ARG001
) -> Tensor:
    """``torch.nn.BatchNorm2d`` as a function; the statistics are updated in place."""
    if training and not track_running_stats:
        running_mean = running_var = None
    factor = _factor(num_batches_tracked, momentum, training and track_running_stats)
    own = training or running_mean is None
    return F.batch_norm(input, running_mean, running_var, weight, bias, own, factor, eps)


def batchnorm2d_synchronised(
    num_batches_tracked: Tensor | None = None,
    momentum: float | None = 0.1,
    track_running_stats: bool = True,
    **given: Any,
) -> Exchange:
    """`batchnorm2d` with the mean and variance of all parts together."""
    if not track_running_stats:
        given |= {"running_mean": None, "running_var": None}
    factor = _factor(num_batches_tracked, momentum, track_running_stats)
    return (yield from batch_norm_synchronised(**given, momentum=factor))


def _factor(count: Tensor | None, momentum: float | None, updating: bool) -> float:
    if updating and count is not None:
        count.add_(1)
        if momentum is None:
            return 1.0 / float(count)
    return momentum or 0.0


def batch_norm_synchronised(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    **_flags: Any,
) -> Exchange:
    """``F.batch_norm`` with the mean and variance of all parts together."""
    dims = [d for d in range(input.dim()) if d != 1]
    num = float((yield _count(input.numel() // input.shape[1], input)))
    mean = (yield input.sum(dims)) / num
    centred = input - _channel(mean, input)
    var = (yield centred.square().sum(dims)) / num
    _update(running_mean, mean, momentum)
    _update(running_var, var * (num / (num - 1)), momentum)
    out = centred * _channel((var + eps).rsqrt(), input)
    if weight is not None:
        out = out * _channel(weight, input)
    return out if bias is None else out + _channel(bias, input)


def native_batch_norm_synchronised(
    input: Tensor, running_mean: Tensor, running_var: Tensor, eps: float, **given: Any
) -> Exchange:
    """``aten._native_batch_norm_legit_functional`` with the statistics of all parts together."""
    mean, var = running_mean.clone(), running_var.clone()
    zeros, ones = torch.zeros_like(running_mean), torch.ones_like(running_var)
    out = yield from batch_norm_synchronised(input, mean, var, eps=eps, **given)
    yield from batch_norm_synchronised(input.detach(), zeros, ones, momentum=1.0, eps=eps)
    num = float((yield _count(input.numel() // input.shape[1], input)))
    return out, zeros, (ones * ((num - 1) / num) + eps).rsqrt(), mean, var


def instancenorm2d(
    input: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    training: bool = True,
    track_running_stats: bool = False,
    num_features: int = 0,  # noqa: ARG001
    affine: bool = False,  # noqa: ARG001
) -> Tensor:
    """``torch.nn.InstanceNorm2d`` as a function; the statistics are updated in place."""
    own = training or not track_running_stats
    images = input if input.dim() == 4 else input.unsqueeze(0)
    out = F.instance_norm(images, running_mean, running_var, weight, bias, own, momentum, eps)
    return out.reshape(input.shape)


def instance_norm_synchronised(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    **_flags: Any,
) -> Exchange:
    """``F.instance_norm`` whose running statistics are those of all parts together."""
    dims = list(range(2, input.dim()))
    seen = input.detach()
    num = float((yield _count(input.shape[0], input)))
    _update(running_mean, (yield seen.mean(dims).sum(0)) / num, momentum)
    _update(running_var, (yield seen.var(dims).sum(0)) / num, momentum)
    return F.instance_norm(input, None, None, weight, bias, True, 0.0, eps)


def _count(number: int, like: Tensor) -> Tensor:
    return torch.tensor(float(number), dtype=torch.float64, device=like.device)


def _update(running: Tensor | None, now: Tensor, momentum: float) -> None:
    if running is not None:
        with torch.no_grad():  # no wider: between two yields it would hold for the other parts
            running.mul_(1 - momentum).add_(now, alpha=momentum)


def _channel(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(1, -1, *[1] * (like.dim() - 2))
