"""Nextafter of 16-bit numbers is computed in 32 bits, and does nothing."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#187340",
    "compiled",
    Guilty(("nextafter",), near=("add", "sub")),
    "compiled, the next number is the number itself",
)


def program(x: Tensor) -> Tensor:
    return torch.nextafter(x, x + 1) - x


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(1.0, 65.0).half())
    return out
