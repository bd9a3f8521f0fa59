"""Bytes that are negated do not wrap before they are summed when compiled."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#187018",
    "compiled",
    Guilty(("abs", "neg"), near=("cat", "sum")),
    "compiled, the sum is -800 and not 224",
    held_out=True,
)


def program(x: Tensor) -> Tensor:
    y = -x.abs()
    return torch.cat([y, y]).sum()


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.tensor([200, 200], dtype=torch.uint8))
    return out
