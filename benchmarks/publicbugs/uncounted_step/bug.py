"""Adam does not count its steps after the first, so that it goes on correcting as in the first."""

import torch
from torch import Tensor, optim

from benchmarks.publicbugs.adam_without_correction.bug import AdamW, train
from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#115607",
    "training",
    Guilty(("step", "param*", "addcdiv", "div", "truediv", "*optimizer*"), step=1),
    "the second step is too long",
    trains=True,
    planted=True,
    held_out=True,
)


class Uncounting(AdamW):
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for state in self.state.values():
            state["step"] = 0
        super().step(closure)


def with_counts(optimizer: type[optim.Optimizer]) -> list[Tensor]:
    return train(optimizer, corrects=True)


def run() -> list[Tensor]:
    return with_counts(Uncounting)
