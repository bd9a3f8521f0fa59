"""Small parallel layers on gloo that several bugs share; with one process they are the layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn


def rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def world() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


def mine(x: Tensor, dim: int = 0) -> Tensor:
    """The part of a tensor that belongs to this rank."""
    return x.chunk(world(), dim)[rank()].contiguous()


def summed(x: Tensor) -> Tensor:
    out = x.clone()
    if world() > 1:
        distributed.all_reduce(out)
    return out


def gathered(x: Tensor, dim: int = 0) -> Tensor:
    if world() == 1:
        return x
    parts = [torch.empty_like(x) for _ in range(world())]
    distributed.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim)


class Copy(torch.autograd.Function):
    """Into a parallel region: forward does nothing, backward sums over ranks."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return summed(grad)


class Reduce(torch.autograd.Function):
    """Out of a parallel region: forward sums over ranks, backward does nothing."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return summed(x)

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Gather(torch.autograd.Function):
    """Forward gathers the last dim, backward takes this rank's part."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return gathered(x, -1)

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return mine(grad, -1)


class ColumnLinear(nn.Module):
    """A linear layer whose outputs are split over ranks."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(mine(layer.weight.detach()).clone())
        self.bias = (
            nn.Parameter(mine(layer.bias.detach()).clone()) if layer.bias is not None else None
        )

    def forward(self, x: Tensor) -> Tensor:
        into: Tensor = Copy.apply(x)  # type: ignore[no-untyped-call]
        return F.linear(into, self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer whose inputs are split over ranks; the bias is added once."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(mine(layer.weight.detach(), 1).clone())
        self.bias = nn.Parameter(layer.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = Reduce.apply(F.linear(x, self.weight))  # type: ignore[no-untyped-call]
        return out + self.bias


def average_gradients(model: nn.Module) -> None:
    for one in model.parameters():
        if one.grad is not None and world() > 1:
            distributed.all_reduce(one.grad)
            one.grad /= world()
