"""The divisor of a remainder of 16-bit numbers is not rounded to 16 bits when compiled."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#186875",
    "compiled",
    Guilty(("remainder", "fmod"), near=("mul",)),
    "compiled, the remainder of -1.703125 and 1.7 is 1.695 and not 0",
    held_out=True,
)


def program(x: Tensor) -> Tensor:
    return torch.remainder(x, 1.7) * 2


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.tensor([1.703125, -1.703125] * 8).bfloat16())
    return out
