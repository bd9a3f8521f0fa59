"""A graph that was compiled for separate inputs is used again where they share memory."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#139789",
    "compiled",
    Guilty(("add", "mul")),
    "the second call gives 3 where eager gives 4",
)


def program(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x + y


def run() -> Tensor:
    compiled = torch.compile(program)
    compiled(torch.ones(4), torch.ones(4))
    base = torch.ones(8)
    out: Tensor = compiled(base[:4], base[2:6])
    return out
