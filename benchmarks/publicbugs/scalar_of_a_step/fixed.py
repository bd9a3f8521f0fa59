"""The count is a Python number: the loop is one graph."""

import torch
from torch import Tensor


def program(weight: Tensor, grad: Tensor) -> Tensor:
    weight, first, second = weight.clone(), torch.zeros_like(weight), torch.zeros_like(weight)
    for number in range(1, 6):
        first.mul_(0.9).add_(grad, alpha=0.1)
        second.mul_(0.999).addcmul_(grad, grad, value=0.001)
        scale = (second.sqrt() / (1 - 0.999**number) ** 0.5).add_(1e-8)
        weight.addcdiv_(first, scale, value=-0.01 / (1 - 0.9**number))
    return weight


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.linspace(-1, 1, 8), torch.linspace(0.5, 2, 8))
    return out
