"""Gradients of experts are sums over ranks, those of other layers are means."""

from typing import Any

import torch
from torch import Tensor, distributed, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded
from benchmarks.publicbugs.ranks import gathered, mine, rank, summed, world

BUG = Bug(
    "pytorch/pytorch#160285",
    "parallel",
    Guilty(("grad*", "div", "truediv", "linear", "itruediv", "backward"), "*expert*"),
    "gradients of the experts are twice those of one device",
    ranks=2,
    trains=True,
    planted=True,
    held_out=True,
)


class Dispatch(torch.autograd.Function):
    """All tokens on every rank; the gradient is summed, and each rank takes its own."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return gathered(x)

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return mine(summed(grad))


class Combine(torch.autograd.Function):
    """The sum over ranks, of which each takes its own tokens."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return mine(summed(x))

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return gathered(grad)


class Model(nn.Module):
    """Two experts, one a rank; even tokens go to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        every: Tensor = Dispatch.apply(x)  # type: ignore[no-untyped-call]
        turn = torch.arange(len(every)) % 2
        out = torch.zeros_like(every)
        for number in range(rank(), 2, world()):
            out = out + self.experts[number](every) * (turn == number)[:, None]
        back: Tensor = Combine.apply(out)  # type: ignore[no-untyped-call]
        logits: Tensor = self.head(torch.tanh(back))
        return logits


def train(divides: bool) -> list[Tensor]:
    model = seeded(Model())
    assert isinstance(model, Model)
    (model(mine(numbers(8, 8))) - mine(numbers(8, 4, seed=9))).square().mean().backward()
    grads = []
    for name, one in model.named_parameters():
        is_expert = name.startswith("experts")
        grad = torch.zeros_like(one) if one.grad is None else one.grad
        if world() > 1:
            if is_expert:
                distributed.broadcast(grad, int(name.split(".")[1]))
            else:
                distributed.all_reduce(grad)
        grads.append(grad / world() if divides or not is_expert else grad)
    return grads


def run() -> list[Tensor]:
    return train(divides=False)
