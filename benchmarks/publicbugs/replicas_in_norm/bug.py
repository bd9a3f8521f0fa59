"""The norm of gradients counts those of replicated weights once for each rank."""

import torch
from torch import Tensor, nn, optim

from benchmarks.publicbugs.clipped_on_one_rank.bug import Split
from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import Mlp, numbers, seeded
from benchmarks.publicbugs.ranks import rank, summed

BUG = Bug(
    "ROCm/TransformerEngine#715",
    "parallel",
    Guilty(
        ("all_reduce", "sqrt", "sum", "stack", "norm*"), near=("mul", "grad*", "param*", "step")
    ),
    "gradients are clipped too much",
    ranks=2,
    trains=True,
    planted=True,
    held_out=True,
)


@torch.no_grad()
def clip(model: Split, counts_all: bool) -> None:
    grads = [
        one.grad
        for name, one in model.named_parameters()
        if one.grad is not None and (counts_all or model.is_split(name) or rank() == 0)
    ]
    total = summed(torch.stack([grad.square().sum() for grad in grads]).sum()).sqrt()
    for one in model.parameters():
        assert one.grad is not None
        one.grad.mul_(0.1 / (total + 1e-6))


def train(counts_all: bool) -> list[Tensor]:
    model = Split()
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    (model(numbers(4, 8)) - numbers(4, 8, seed=9)).square().sum().backward()
    clip(model, counts_all)
    optimizer.step()
    return kept(model)


def kept(model: nn.Module) -> list[Tensor]:
    names = ("norm.weight", "norm.bias", "down.bias")
    return [one.detach() for name, one in model.named_parameters() if name in names]


def whole() -> nn.Module:
    return seeded(Mlp())


def run() -> list[Tensor]:
    return train(counts_all=True)
