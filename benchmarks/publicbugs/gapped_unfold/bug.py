"""A write through an unfold view with gaps makes the gaps zero."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#198102",
    "compiled",
    Guilty(("add", "unfold"), near=("mul",)),
    "compiled, columns 1 to 4 are zero",
)


def program(x: Tensor) -> Tensor:
    windows = x.unfold(1, 1, 5)
    windows.add_(windows)
    return x * 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(1, 25).reshape(4, 6))
    return out
