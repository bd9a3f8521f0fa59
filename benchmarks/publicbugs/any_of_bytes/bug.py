"""`any` of bytes is a boolean when compiled, so that what follows does not wrap."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#198081",
    "compiled",
    Guilty(("any",), near=("mul",)),
    "compiled, any(x) * 200 + 100 is 300 and not 44",
)


def program(x: Tensor) -> Tensor:
    return torch.any(x) * 200 + 100


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.tensor([[0, 3], [0, 0]], dtype=torch.uint8))
    return out
