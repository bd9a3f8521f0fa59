"""Ops that reduce dims: sums, means, extremes, and the places of extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.onnx_ops.op_table import define, numbers

_SUMS, _COMPOSES, _CHOOSES = FunctionKind.SUMS, FunctionKind.COMPOSES, FunctionKind.CHOOSES


def _reducing(reduce: Callable[[Tensor, tuple[int, ...], bool], Tensor]) -> Callable[..., Tensor]:
    """A definition that reduces the dims that it is given, as an input or as an attribute."""

    def run(
        x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Tensor:
        dims = numbers(axes)
        if not dims and noop_with_empty_axes:
            return x.clone()
        return reduce(x, tuple(dims) or tuple(range(x.ndim)), bool(keepdims))

    return run


def _mean(x: Tensor, dims: tuple[int, ...], keeps: bool) -> Tensor:
    if x.is_floating_point():
        return x.mean(dims, keepdim=keeps)
    return x.double().mean(dims, keepdim=keeps).to(x.dtype)


def _prod(x: Tensor, dims: tuple[int, ...], keeps: bool) -> Tensor:
    for dim in sorted((dim % max(1, x.ndim) for dim in dims), reverse=True):
        x = x.prod(dim, keepdim=keeps).to(x.dtype)
    return x


define("ReduceSum", _SUMS)(_reducing(lambda x, d, k: x.sum(d, keepdim=k, dtype=x.dtype)))
define("ReduceMean", _SUMS)(_reducing(_mean))
define("ReduceSumSquare", _SUMS)(_reducing(lambda x, d, k: (x * x).sum(d, keepdim=k)))
define("ReduceL1", _SUMS)(_reducing(lambda x, d, k: x.abs().sum(d, keepdim=k)))
define("ReduceL2", _COMPOSES)(_reducing(lambda x, d, k: (x * x).sum(d, keepdim=k).sqrt()))
define("ReduceLogSum", _COMPOSES)(_reducing(lambda x, d, k: x.sum(d, keepdim=k).log()))
define("ReduceLogSumExp", _COMPOSES)(_reducing(lambda x, d, k: x.logsumexp(d, keepdim=k)))
define("ReduceProd", _COMPOSES)(_reducing(_prod))
define("ReduceMax", FunctionKind.MOVES)(_reducing(lambda x, d, k: x.amax(d, keepdim=k)))
define("ReduceMin", FunctionKind.MOVES)(_reducing(lambda x, d, k: x.amin(d, keepdim=k)))


def _place(x: Tensor, axis: int, keepdims: int, last: int, most: bool) -> Tensor:
    seen = x.flip(axis) if last else x
    at = (seen.argmax if most else seen.argmin)(axis, keepdim=bool(keepdims))
    return x.shape[axis] - 1 - at if last else at


@define("ArgMax", _CHOOSES)
def _argmax(x: Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _place(x, axis, keepdims, select_last_index, True)


@define("ArgMin", _CHOOSES)
def _argmin(x: Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _place(x, axis, keepdims, select_last_index, False)


@define("Softmax", _COMPOSES)
def _softmax(x: Tensor, axis: int = -1) -> Tensor:
    return torch.softmax(x, axis)


@define("LogSoftmax", _COMPOSES)
def _log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    return torch.log_softmax(x, axis)


@define("Hardmax", _CHOOSES)
def _hardmax(x: Tensor, axis: int = -1) -> Tensor:
    at = x.argmax(axis, keepdim=True)
    return torch.zeros_like(x).scatter(axis, at, 1.0)
