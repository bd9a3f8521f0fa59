"""The minimum of 16 or more small integers starts from 0."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#191499",
    "compiled",
    Guilty(("min",), near=("add",)),
    "compiled, the minimum of 5, 6, ... is 0",
)


def program(x: Tensor) -> Tensor:
    return x.min() + x


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(5, 77).to(torch.uint8))
    return out
