"""Rows that are shifted in place are copied over overlapping memory."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#197829",
    "compiled",
    Guilty(("setitem", "copy"), near=("clone", "mul")),
    "compiled, row 0 is in all rows",
)


def program(x: Tensor) -> Tensor:
    x[1:] = x[:-1].clone()
    return x * 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(768.0).reshape(3, 16, 16))
    return out
