"""The divisor is a tensor of the same dtype, from outside of the graph."""

import torch
from torch import Tensor


def program(x: Tensor, divisor: Tensor) -> Tensor:
    return torch.remainder(x, divisor) * 2


def run() -> Tensor:
    x = torch.tensor([1.703125, -1.703125] * 8).bfloat16()
    out: Tensor = torch.compile(program)(x, torch.full((16,), 1.7).bfloat16())
    return out
