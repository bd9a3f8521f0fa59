"""Tensor parallelism written by hand on plain tensors, and the faults that such code has."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from tests.taps.distributed.programs.decoder import Decoder, FusedAttention, GatedMlp

NO_FAULT = ""


class _Copy(torch.autograd.Function):
    """Identity forward, sum of the gradients backward: the entrance of a column-parallel layer."""

    @staticmethod
    def forward(ctx: Any, x: Any, sums: Any) -> Any:
        ctx.sums = sums
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        grad = grad.contiguous().clone()
        if ctx.sums:
            dist.all_reduce(grad)
        return grad, None


class _Sum(torch.autograd.Function):
    """Sum forward, identity backward: the exit of a row-parallel layer."""

    @staticmethod
    def forward(ctx: Any, x: Any, times: Any) -> Any:
        ctx.mark_dirty(x)
        for _ in range(times):
            dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


def _share(whole: Tensor, dim: int, rank: int, size: int, parts: int = 1) -> Tensor:
    pieces = [part.chunk(size, dim)[rank] for part in whole.chunk(parts, dim)]
    return torch.cat(pieces, dim).contiguous()


class ColumnParallel(nn.Module):
    """Holds a share of the output features; `parts` projections are merged in them."""

    def __init__(self, whole: nn.Module, rank: int, size: int, parts: int, fault: str) -> None:
        super().__init__()
        assert isinstance(whole, nn.Linear)
        held = 1 - rank if fault == "swapped shards" and rank < 2 else rank
        self.weight = nn.Parameter(_share(whole.weight.detach(), 0, held, size, parts))
        self.bias = nn.Parameter(_share(whole.bias.detach(), 0, rank, size, parts))
        self.sums = fault != "gradients not summed"

    def forward(self, x: Tensor) -> Tensor:
        x = _Copy.apply(x, self.sums)  # type: ignore[no-untyped-call]
        return F.linear(x, self.weight, self.bias)


class RowParallel(nn.Module):
    """Holds a share of the input features; the first rank's term includes the bias."""

    def __init__(self, whole: nn.Module, rank: int, size: int, fault: str, annotate: bool) -> None:
        super().__init__()
        assert isinstance(whole, nn.Linear)
        self.weight = nn.Parameter(_share(whole.weight.detach(), 1, rank, size))
        if fault == "stale weights" and rank == size - 1:
            self.weight = nn.Parameter(self.weight.detach() * 0.9 + 0.01)
        self.bias = nn.Parameter(whole.bias.detach().clone())
        self.adds_bias = rank == 0 or fault == "bias on every rank"
        self.times = {"forgotten all_reduce": 0, "all_reduce twice": 2}.get(fault, 1)
        self.annotate = annotate

    def forward(self, x: Tensor) -> Tensor:
        term = F.linear(x, self.weight, self.bias if self.adds_bias else None)
        out: Tensor = _Sum.apply(term, self.times)  # type: ignore[no-untyped-call]
        return dumpcmp.layout(out, "b s h @ " + _place()) if self.annotate else out


def _place() -> str:
    return f"tp:{dist.get_rank()}/{dist.get_world_size()}"


def parallelise(
    model: Decoder, fault: str = NO_FAULT, layer: str = "1", annotate: bool = False
) -> Any:
    """Give each rank its share of `model`; the fault, if any, is in the layer `layer` only."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for name, block in model.layers.items():
        here = fault if name == layer else NO_FAULT
        attn, mlp = block.attn, block.mlp
        assert isinstance(attn, FusedAttention) and isinstance(mlp, GatedMlp)
        attn.qkv = ColumnParallel(attn.qkv, rank, size, 3, here)
        attn.o = RowParallel(attn.o, rank, size, here, annotate)
        mlp.gate_up = ColumnParallel(mlp.gate_up, rank, size, 2, NO_FAULT)
        mlp.down = RowParallel(mlp.down, rank, size, NO_FAULT, annotate)
    return model
