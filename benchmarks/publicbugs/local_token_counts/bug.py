"""Each rank divides its loss by its own count of tokens, and gradients are averaged."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import gradients, numbers, seeded
from benchmarks.publicbugs.ranks import average_gradients, mine, summed, world

BUG = Bug(
    "pytorch/torchtitan#1842",
    "parallel",
    Guilty(
        ("div", "truediv", "cross_entropy", "mul", "grad*"), near=("sum", "head*", "all_reduce")
    ),
    "gradients are not those of the whole batch, in which each token counts the same",
    ranks=4,
    trains=True,
    planted=True,
)
LABELS = [[1, 2, 3], [1, -100, -100], [4, 5, -100], [0, 1, 2]]


class Model(nn.Module):
    def __init__(self, counts_all: bool) -> None:
        super().__init__()
        self.counts_all = counts_all
        self.head = seeded(nn.Linear(8, 6))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(x)
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        count = (labels != -100).sum()
        if self.counts_all:
            count = summed(count) / world()
        return total / count


def train(counts_all: bool) -> list[Tensor]:
    model = Model(counts_all)
    model(mine(numbers(4, 3, 8)), mine(torch.tensor(LABELS))).backward()
    average_gradients(model)
    return gradients(model)


def run() -> list[Tensor]:
    return train(counts_all=False)
