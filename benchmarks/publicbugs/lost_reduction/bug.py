"""The sum over ranks of a gradient that is not contiguous goes into a copy, and is lost."""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded
from benchmarks.publicbugs.ranks import Reduce, mine, summed, world

BUG = Bug(
    "NovaSky-AI/SkyRL#1886",
    "parallel",
    Guilty(
        ("all_reduce", "grad*", "contiguous", "LossyCopy*"), near=("norm*", "transpose", "linear")
    ),
    "gradients before the head are those of each rank's part of it",
    ranks=2,
    trains=True,
    planted=True,
    held_out=True,
)


class LossyCopy(torch.autograd.Function):
    """Into a parallel region; the gradient's sum is returned only if it was summed in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loses: bool) -> Tensor:
        ctx.loses = loses
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = summed(grad.contiguous())
        return (grad if ctx.loses and world() > 1 else total), None


class Head(nn.Module):
    def __init__(self, loses: bool) -> None:
        super().__init__()
        self.loses = loses
        self.norm = nn.LayerNorm(8)
        self.weight = nn.Parameter(mine(numbers(8, 12, seed=5), 1))
        self.back = nn.Parameter(mine(numbers(12, 4, seed=6), 0))

    def forward(self, x: Tensor) -> Tensor:
        copied: Tensor = LossyCopy.apply(self.norm(x), self.loses)  # type: ignore[no-untyped-call]
        hidden = copied.transpose(0, 1).contiguous() @ self.weight
        out: Tensor = Reduce.apply(torch.tanh(hidden) @ self.back)  # type: ignore[no-untyped-call]
        return out


def train(loses: bool) -> list[Tensor]:
    model = Head(loses)
    seeded(model.norm)
    model(numbers(3, 5, 8)).square().sum().backward()
    return [one.grad for one in model.norm.parameters() if one.grad is not None]


def run() -> list[Tensor]:
    return train(loses=True)
