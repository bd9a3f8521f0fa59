"""The condition writes nothing; the loop is counted by hand."""

import torch
from torch import Tensor


def program(state: Tensor, x: Tensor) -> Tensor:
    state.add_(1)
    for _ in range(4):
        state.add_(1)
    return x + 1 + 1 + 1


def run() -> list[Tensor]:
    state = torch.zeros(3)
    with torch.no_grad():
        out = torch.compile(program)(state, torch.ones(2))
    return [state, out]
