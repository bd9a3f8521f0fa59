"""A loss over a split vocabulary is given gathered logits: it counts each of them on every rank."""

import torch
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded
from benchmarks.publicbugs.ranks import ColumnLinear, Gather, Reduce, rank

BUG = Bug(
    "NVIDIA/Megatron-LM#7452",
    "parallel",
    Guilty(
        ("all_reduce", "sum", "log"),
        "*loss*",
        near=("gather*", "all_gather*", "head*", "cross_entropy"),
    ),
    "the loss is log 2 too large",
    ranks=2,
    trains=True,
    planted=True,
)


class VocabParallelLoss(nn.Module):
    """The mean loss of logits of which each rank has a part."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        total: Tensor = Reduce.apply(logits.exp().sum(-1))  # type: ignore[no-untyped-call]
        local = labels - rank() * 6  # this rank's tokens begin here
        here = (local >= 0) & (local < 6)
        own = logits.gather(-1, local.clamp(0, 5)[:, None])[:, 0]
        picked: Tensor = Reduce.apply(torch.where(here, own, 0.0))  # type: ignore[no-untyped-call]
        return (total.log() - picked).mean()


class Model(nn.Module):
    def __init__(self, gathers: bool) -> None:
        super().__init__()
        self.gathers = gathers
        whole = nn.Linear(8, 12, bias=False)
        self.head, self.loss = ColumnLinear(seeded(whole)), VocabParallelLoss()  # type: ignore[arg-type]

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(x)
        if self.gathers:
            logits = Gather.apply(logits)  # type: ignore[no-untyped-call]
        out: Tensor = self.loss(logits, labels)
        return out


def train(gathers: bool) -> list[Tensor]:
    model, x = Model(gathers), numbers(5, 8).requires_grad_()
    loss = model(x, torch.tensor([0, 3, 7, 11, 5]))
    loss.backward()
    assert x.grad is not None
    return [loss.detach()]


def run() -> list[Tensor]:
    return train(gathers=True)
