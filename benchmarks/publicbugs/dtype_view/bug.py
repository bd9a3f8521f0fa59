"""What reads a dtype view of an input is computed after a later write."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#198101",
    "compiled",
    Guilty(("sub", "view", "mul"), near=("setitem",)),
    "compiled, rows 2 to 4 are those of the later write",
)


def program(x: Tensor) -> Tensor:
    y = x.view(torch.int32) * 2
    y.sub_(-4)
    x[:, 2:5] = 2
    return y.view(torch.int64)


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(-12, 12).reshape(4, 6))
    return out
