"""The result of pytorch#191449, computed in another way."""

import torch
from torch import Tensor


def program(x: Tensor) -> Tensor:
    base = x + 1
    alias = base.clone().view(-1)
    alias.resize_(12)
    return base + 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.zeros(1))
    return out
