"""The result of pytorch#198033, computed in another way."""

import torch
from torch import Tensor


def program(x: Tensor) -> Tensor:
    return x + x.flip(0)


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(64.0).reshape(8, 8))
    return out
