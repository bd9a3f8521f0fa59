"""A copy back into an input is fused with a read of it at other places."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#198270",
    "compiled",
    Guilty(("flip", "add"), near=("index_put", "mul")),
    "compiled, the second half is another",
)


def program(x: Tensor) -> Tensor:
    x.index_put_((torch.arange(len(x)),), x * 2.0)
    x.add_(x.flip(0))
    return x * 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(32.0).reshape(4, 8))
    return out
