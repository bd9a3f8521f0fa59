"""The norm of gradients that ranks have averaged is summed over ranks once more."""

import torch
from torch import Tensor, optim

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import Mlp, numbers, seeded, weights
from benchmarks.publicbugs.ranks import average_gradients, mine, summed

BUG = Bug(
    "modelscope/twinkle#290",
    "parallel",
    Guilty(("all_reduce", "sqrt", "norm*", "*norm"), near=("mul", "grad*", "param*", "step")),
    "gradients are clipped to 0.707 of what they should be",
    ranks=2,
    trains=True,
    planted=True,
)


@torch.no_grad()
def clip(model: Mlp, sums: bool) -> None:
    total = torch.stack([one.grad.square().sum() for one in model.parameters()]).sum()  # type: ignore[union-attr]
    norm = (summed(total) if sums else total).sqrt()
    for one in model.parameters():
        assert one.grad is not None
        one.grad.mul_(0.1 / (norm + 1e-6))


def train(sums: bool) -> list[Tensor]:
    model = seeded(Mlp())
    assert isinstance(model, Mlp)
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    (model(mine(numbers(4, 8))) - mine(numbers(4, 8, seed=9))).square().mean().backward()
    average_gradients(model)
    clip(model, sums)
    optimizer.step()
    return weights(model)


def run() -> list[Tensor]:
    return train(sums=True)
