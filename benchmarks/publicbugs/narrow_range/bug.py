"""Products of a range of 64-bit integers are computed in 32 bits when compiled."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#175966",
    "compiled",
    Guilty(("arange", "mul"), near=("add",)),
    "compiled, 3 times 10**9 is negative",
    held_out=True,
)


def program(x: Tensor) -> Tensor:
    return torch.arange(0, 11) * torch.tensor([10**9]) + x


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.zeros(1, dtype=torch.int64))
    return out
