"""The index of the smallest boolean is wrong."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#184893",
    "compiled",
    Guilty(("min",), near=("add",)),
    "compiled, the index is 0 in place of 2",
)


def program(x: Tensor) -> Tensor:
    return x.min(0).indices + 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.tensor([True, True, False, True] * 16))
    return out
