"""A scatter into an input is kept in that input, which a later write changes."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#198094",
    "compiled",
    Guilty(("slice_scatter",), near=("zero_", "getitem")),
    "compiled, the result is zero",
    held_out=True,
)


def program(x: Tensor, source: Tensor) -> Tensor:
    y = torch.slice_scatter(x, source[1:3], dim=0, start=1, end=3)
    x.zero_()
    return y


def run() -> Tensor:
    x, source = torch.arange(24).reshape(4, 6), torch.arange(-12, 12).reshape(4, 6)
    out: Tensor = torch.compile(program)(x, source)
    return out
