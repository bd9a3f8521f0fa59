"""The zero is not a constant of the graph."""

import torch
from torch import Tensor


def program(x: Tensor, zero: Tensor) -> Tensor:
    return x / 2 * zero + 1


def run() -> Tensor:
    x = torch.tensor([1.0, float("inf"), float("nan"), 2.0])
    out: Tensor = torch.compile(program)(x, torch.zeros(4))
    return out
