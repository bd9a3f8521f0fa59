"""Derivatives of functions by what they gave out in the run: outputs as rounded, and choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.op_names import OpSet, OpTable
from dumpcmp.replay.arguments import CallArguments

# of what was given back, the output, the dim, and the dtype of the run
_Rule = Callable[[Tensor, Tensor, int, torch.dtype], Tensor]


def told_by(name: str) -> str:
    """The slot that tells of the derivative of the function of this name; empty for others."""
    if name in _RULES:
        return "output.0"
    return "output.1" if name in _CHOOSERS else ""


def differentiable(
    name: str, arguments: CallArguments, outputs: dict[str, Tensor], recorded: Tensor
) -> dict[str, Tensor]:
    """`outputs` with a derivative by what was `recorded` in the run in the slot that tells of it.

    Of equal scores each may be chosen, and the gradient goes to the one that was.
    """
    make = from_output if name in _RULES else _chosen
    return {**outputs, "output.0": make(name, arguments, outputs["output.0"], recorded)}


def _chosen(name: str, arguments: CallArguments, made: Tensor, places: Tensor) -> Tensor:
    """What stands at the `places` that were chosen; `made` itself where nothing tells of a dim."""
    told = dict(zip(_CHOOSERS[name], arguments.args, strict=False)) | arguments.kwargs
    dim, taken = told.get("dim", None if name in _NEEDING else -1), told["input"]
    if not isinstance(dim, int) or places.numel() != made.numel():
        return made
    keeps = places.ndim == taken.ndim
    at = places if keeps else places.unsqueeze(dim)
    found = torch.take_along_dim(taken, at.to(taken.device), dim)
    return found if keeps else found.squeeze(dim)


def from_output(name: str, arguments: CallArguments, made: Tensor, recorded: Tensor) -> Tensor:
    """`made` as it is, differentiated by what was `recorded` for it in the run.

    `made` itself where nothing tells along which dim.
    """
    taken, dim = arguments.args[0], _dim(name, arguments)
    if dim is None or not taken.requires_grad or recorded.shape != made.shape:
        return made
    found = _FromOutput.apply(taken, made.detach(), recorded, dim, _RULES[name])  # type: ignore[no-untyped-call]
    return torch.as_tensor(found)


def _dim(name: str, arguments: CallArguments) -> int | None:
    if name in _ELEMENTWISE:
        return 0
    told = [*arguments.args[1:2], *(arguments.kwargs[w] for w in ("dim",) if w in arguments.kwargs)]
    return told[0] if told and isinstance(told[0], int) else None


class _FromOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, taken: Tensor, made: Tensor, recorded: Tensor, *how: Any) -> Tensor:
        ctx.save_for_backward(recorded)
        ctx.dtype, (ctx.dim, ctx.rule) = taken.dtype, how
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # kernels compute in no less than float32, whatever they are given
        wide = torch.promote_types(ctx.dtype, torch.float32)
        (recorded,) = ctx.saved_tensors
        given, output = grads[0].to(wide), recorded.to(wide)
        found = ctx.rule(given, output, ctx.dim, ctx.dtype)
        return found.to(ctx.dtype), None, None, None, None


def _softmax(given: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    # on a GPU the product is a tensor of its own, in the dtype of the run
    weighted = (given * output).to(dtype).to(given.dtype)
    return weighted - output * weighted.sum(dim, keepdim=True)


def _log_softmax(given: Tensor, output: Tensor, dim: int, _: torch.dtype) -> Tensor:
    return given - output.exp() * given.sum(dim, keepdim=True)


def _softmin(given: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return -_softmax(given, output, dim, dtype)


def _sigmoid(given: Tensor, output: Tensor, *_: object) -> Tensor:
    return given * output * (1 - output)


def _tanh(given: Tensor, output: Tensor, *_: object) -> Tensor:
    return given * (1 - output * output)


def _relu(given: Tensor, output: Tensor, *_: object) -> Tensor:
    return torch.where(output > 0, given, 0.0)


_ELEMENTWISE = OpSet("relu sigmoid tanh")
_RULES: OpTable[_Rule] = OpTable({
    "softmax": _softmax, "_softmax": _softmax, "_safe_softmax": _softmax, "softmin": _softmin,
    "log_softmax": _log_softmax, "_log_softmax": _log_softmax,
    "relu": _relu, "sigmoid": _sigmoid, "tanh": _tanh,
})  # fmt: skip

_NEEDING = OpSet("max min")  # without a dim they choose nothing
_CHOOSERS: OpTable[tuple[str, ...]] = OpTable({
    "topk": ("input", "k", "dim"), "sort": ("input", "dim"), "kthvalue": ("input", "k", "dim"),
    "max": ("input", "dim"), "min": ("input", "dim"), "median": ("input", "dim"),
})  # fmt: skip
