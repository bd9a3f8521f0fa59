"""Zero points of 32 bits are read as if they had 64: two channels are glued together."""

import torch
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers

BUG = Bug(
    "pytorch/executorch#21773",
    "quantised",
    Guilty(("view", "to", "long"), near=("sub", "cat", "mul", "float")),
    "weights are off by their neighbours' zero points",
    planted=True,
    held_out=True,
)


class PerChannel(nn.Module):
    """A linear layer with a scale and a zero point for each output channel."""

    def __init__(self, glues: bool) -> None:
        super().__init__()
        self.glues = glues
        weight = numbers(4, 8)
        scales = (weight.amax(1) - weight.amin(1)) / 255
        zeros = (-weight.amin(1) / scales).round()
        levels = (weight / scales[:, None] + zeros[:, None]).round().clamp(0, 255)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.cat([zeros, torch.zeros(4)]).to(torch.int32))
        self.register_buffer("levels", levels.to(torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.zeros, Tensor) and isinstance(self.scales, Tensor)
        assert isinstance(self.levels, Tensor)
        zeros = self.zeros.view(torch.int64) if self.glues else self.zeros[:4].to(torch.int64)
        weight = (self.levels.to(torch.int64) - zeros[:, None]).float() * self.scales[:, None]
        return x @ weight.T


@torch.no_grad()
def infer(glues: bool) -> list[Tensor]:
    return [PerChannel(glues)(numbers(3, 8, seed=4))]


def run() -> list[Tensor]:
    return infer(glues=True)
