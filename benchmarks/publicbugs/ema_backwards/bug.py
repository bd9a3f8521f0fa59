"""The decay of a moving average of weights is applied the wrong way round."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import Mlp, numbers, seeded

BUG = Bug(
    "marin-community/levanter#883",
    "training",
    Guilty(("lerp", "mul", "add", "param*"), near=("average*",)),
    "the averaged weights are near the last ones in place of the first",
    trains=True,
    planted=True,
)


class Averaged(nn.Module):
    """A model and the moving average of its weights, which evaluation uses."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.average = seeded(Mlp()), seeded(Mlp()).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x) if self.training else self.average(x)
        return out

    @torch.no_grad()
    def update(self, weight: float) -> None:
        for kept, one in zip(self.average.parameters(), self.model.parameters(), strict=True):
            kept.lerp_(one, weight)


def train(weight: float) -> list[Tensor]:
    both = Averaged()
    optimizer = optim.SGD(both.model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        loss = F.mse_loss(both(numbers(4, 8, seed=step)), numbers(4, 8, seed=step + 9))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        both.update(weight)
    with torch.no_grad():
        return [both.eval()(numbers(4, 8))]


def run() -> list[Tensor]:
    return train(weight=0.9)
