"""Quantised levels of 0 to 255 are read back as signed bytes."""

import torch
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers

BUG = Bug(
    "Scottcjn/exo-cuda#40",
    "quantised",
    Guilty(("view", "to", "float", "sub", "type"), near=("mul", "linear")),
    "weights in the upper half of the range are negative",
    planted=True,
)


class Quantised(nn.Module):
    """A linear layer with weights of one byte."""

    def __init__(self, signed: bool) -> None:
        super().__init__()
        self.signed = signed
        weight = numbers(6, 8)
        self.low, self.scale = float(weight.min()), float(weight.max() - weight.min()) / 255
        levels = ((weight - self.low) / self.scale).round()
        self.register_buffer("levels", levels.to(torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.levels, Tensor)
        levels = self.levels.view(torch.int8) if self.signed else self.levels
        return x @ (levels.float() * self.scale + self.low).T


@torch.no_grad()
def infer(signed: bool) -> list[Tensor]:
    return [Quantised(signed)(numbers(3, 8, seed=4))]


def run() -> list[Tensor]:
    return infer(signed=True)
