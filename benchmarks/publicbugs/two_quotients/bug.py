"""The quotient of 16-bit numbers is another in a tensor of two than in a tensor of one."""

import torch
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#193754",
    "kernel",
    Guilty(("floor_divide",), near=("mul",)),
    "560 // 3 is 187 and not 186, doubled",
    tolerance=1e-5,
    held_out=True,
)


class Quotient(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.floor_divide(x, y) * 2


def run() -> Tensor:
    x = torch.tensor([560.0, 561.0], dtype=torch.bfloat16)
    out: Tensor = Quotient()(x, torch.full_like(x, 3.0))
    return out
