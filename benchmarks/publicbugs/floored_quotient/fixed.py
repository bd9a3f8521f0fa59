"""Floor division as Python defines it."""

import torch
from torch import Tensor


def program(a: Tensor, b: Tensor) -> Tensor:
    return ((a - torch.fmod(a, b)) / b).round() + 1


def run() -> Tensor:
    a, b = torch.tensor([1.0, 0.5, 6.0, 7.0]), torch.tensor([0.1, 0.1, 0.2, 2.0])
    out: Tensor = torch.compile(program)(a, b)
    return out
