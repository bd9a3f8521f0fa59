"""The same with the negation written twice."""

import torch
from torch import Tensor


def program(x: Tensor) -> Tensor:
    return torch.cat([-x.abs(), -x.abs()]).sum()


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.tensor([200, 200], dtype=torch.uint8))
    return out
