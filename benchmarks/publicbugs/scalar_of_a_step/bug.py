"""A scalar that is read between two graphs keeps the value of an earlier step of the loop."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#185382",
    "compiled",
    Guilty(("addcdiv", "div", "truediv", "sqrt", "add"), near=("mul", "addcmul", "item")),
    "compiled, the weights after five steps of Adam are others",
    held_out=True,
)


def step(weight: Tensor, grad: Tensor, first: Tensor, second: Tensor, count: Tensor) -> None:
    count.add_(1)
    first.mul_(0.9).add_(grad, alpha=0.1)
    second.mul_(0.999).addcmul_(grad, grad, value=0.001)
    number = count.item()
    scale = (second.sqrt() / (1 - 0.999**number) ** 0.5).add_(1e-8)
    weight.addcdiv_(first, scale, value=-0.01 / (1 - 0.9**number))


def program(weight: Tensor, grad: Tensor) -> Tensor:
    weight, first, second = weight.clone(), torch.zeros_like(weight), torch.zeros_like(weight)
    count = torch.zeros(())
    for _ in range(5):
        step(weight, grad, first, second, count)
    return weight


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.linspace(-1, 1, 8), torch.linspace(0.5, 2, 8))
    return out
