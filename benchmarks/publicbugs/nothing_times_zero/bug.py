"""A product with zero is folded to zero when compiled, also where it is not a number."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#186281",
    "compiled",
    Guilty(("mul",), near=("add", "div")),
    "compiled, infinity times zero is zero",
    held_out=True,
)


def program(x: Tensor) -> Tensor:
    return x / 2 * 0 + 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.tensor([1.0, float("inf"), float("nan"), 2.0]))
    return out
