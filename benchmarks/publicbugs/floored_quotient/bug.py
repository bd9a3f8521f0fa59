"""Floor division of floats is one too large where the quotient rounds up to an integer."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#197895",
    "compiled",
    Guilty(("floordiv", "floor_divide", "div"), near=("add",)),
    "compiled, 1.0 // 0.1 is 10 and not 9",
)


def program(a: Tensor, b: Tensor) -> Tensor:
    return a // b + 1


def run() -> Tensor:
    a, b = torch.tensor([1.0, 0.5, 6.0, 7.0]), torch.tensor([0.1, 0.1, 0.2, 2.0])
    out: Tensor = torch.compile(program)(a, b)
    return out
