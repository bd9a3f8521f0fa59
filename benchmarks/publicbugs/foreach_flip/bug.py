"""An in-place foreach op reads its input while it writes to it."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#198033",
    "compiled",
    Guilty(("flip", "foreach_add"), near=("mul",)),
    "compiled, half of the rows are added twice",
)


def program(x: Tensor) -> Tensor:
    torch._foreach_add_([x], [x.flip(0)])
    return x * 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(64.0).reshape(8, 8))
    return out
