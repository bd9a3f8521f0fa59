"""Recomputation of a checkpointed block updates batch norm's running statistics again."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded

BUG = Bug(
    "pytorch/pytorch#96136",
    "training",
    Guilty(("batch_norm", "running*", "*running_*", "*num_batches*", "buffer*"), "*bn*"),
    "num_batches_tracked is 4 after 2 steps, and evaluation gives other values",
    trains=True,
)


class Net(nn.Module):
    def __init__(self, recomputes: bool) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.inner, self.bn, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def block(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.inner(x)))

    def forward(self, x: Tensor) -> Tensor:
        if self.recomputes and self.training:
            x = checkpoint(self.block, x, use_reentrant=False)
        else:
            x = self.block(x)
        out: Tensor = self.last(x)
        return out


def train(recomputes: bool) -> list[Tensor]:
    model = seeded(Net(recomputes))
    for step in range(2):
        model(numbers(6, 8, seed=step)).square().mean().backward()
    with torch.no_grad():
        return [model.eval()(numbers(6, 8))]


def run() -> list[Tensor]:
    return train(recomputes=True)
