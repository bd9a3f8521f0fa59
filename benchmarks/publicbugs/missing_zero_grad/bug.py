"""Gradients are never cleared, so that each step takes the sum of all before it."""

import torch.nn.functional as F
from torch import Tensor, optim

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import Mlp, numbers, seeded, weights

BUG = Bug(
    "https://stackoverflow.com/questions/60335387",
    "training",
    Guilty(("grad*", "param*", "zero_grad", "step", "backward"), step=1),
    "the weights after three steps are others than with zero_grad",
    trains=True,
    planted=True,
)


def train(clears: bool) -> list[Tensor]:
    model = seeded(Mlp())
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        if clears:
            optimizer.zero_grad()
        loss = F.mse_loss(model(numbers(4, 8, seed=step)), numbers(4, 8, seed=step + 9))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return weights(model)


def run() -> list[Tensor]:
    return train(clears=False)
