"""The result of pytorch#184893, computed in another way."""

import torch
from torch import Tensor


def program(x: Tensor) -> Tensor:
    return (~x).long().argmax(0) + 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.tensor([True, True, False, True] * 16))
    return out
