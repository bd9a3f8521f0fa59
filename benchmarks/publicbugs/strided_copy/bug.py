"""What was written in place has other strides than eager's."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#133512",
    "compiled",
    Guilty(("as_strided_copy",), near=("add",)),
    "compiled, every element is read, not every second",
)


def program(x: Tensor) -> Tensor:
    x.add_(1)
    return torch.as_strided_copy(x, (3,), (2,))


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(10)[::2])
    return out
