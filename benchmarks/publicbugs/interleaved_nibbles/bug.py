"""4-bit weights that lie in two halves are unpacked as if they were interleaved."""

import torch
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers

BUG = Bug(
    "kekzl/imp#722",
    "quantised",
    Guilty(("stack", "cat", "flatten", "view", "reshape"), near=("sub", "and", "rshift", "matmul")),
    "the product of the unpacked weights is another",
    planted=True,
)


class Packed(nn.Module):
    """A linear layer with two weights in a byte: the low one is of the first half of a row."""

    def __init__(self, interleaves: bool) -> None:
        super().__init__()
        self.interleaves = interleaves
        levels = (numbers(6, 16) * 3 + 8).round().clamp(0, 15).to(torch.uint8)
        self.register_buffer("packed", levels[:, :8] | (levels[:, 8:] << 4))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.packed, Tensor)
        low, high = self.packed & 15, self.packed >> 4
        if self.interleaves:
            levels = torch.stack([low, high], -1).flatten(-2)
        else:
            levels = torch.cat([low, high], -1)
        return x @ ((levels.float() - 8) * 0.1).T


@torch.no_grad()
def infer(interleaves: bool) -> list[Tensor]:
    return [Packed(interleaves)(numbers(3, 16, seed=4))]


def run() -> list[Tensor]:
    return infer(interleaves=True)
