"""To resize a view of an intermediate resizes the intermediate."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#191449",
    "compiled",
    Guilty(("resize",), near=("add", "view")),
    "compiled, the result has 12 elements in place of 1",
)


def program(x: Tensor) -> Tensor:
    base = x + 1
    alias = base.view(-1)
    alias.resize_(12)
    return base + 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.zeros(1))
    return out
