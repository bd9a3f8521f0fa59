"""Labels are shifted in each rank's part of the sequence, so that those at its end are lost."""

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import gradients, seeded, tokens
from benchmarks.publicbugs.ranks import mine, summed, world

BUG = Bug(
    "huggingface/transformers#36607",
    "parallel",
    Guilty(("pad", "getitem", "cross_entropy", "roll", "cat"), near=("sum", "ne", "head*", "div")),
    "gradients miss the label behind each part",
    ranks=2,
    trains=True,
    planted=True,
    held_out=True,
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(self.embed(ids))
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return total / summed((labels != -100).sum())


def shifted(labels: Tensor) -> Tensor:
    return F.pad(labels[:, 1:], (0, 1), value=-100)


def train(shifts_parts: bool) -> list[Tensor]:
    model, ids = seeded(Model()), tokens(2, 8)
    labels = shifted(mine(ids, 1)) if shifts_parts else mine(shifted(ids), 1)
    model(mine(ids, 1), labels).backward()
    for one in model.parameters():
        if world() > 1:
            distributed.all_reduce(one.grad)
    assert torch.is_grad_enabled()
    return gradients(model)


def run() -> list[Tensor]:
    return train(shifts_parts=True)
