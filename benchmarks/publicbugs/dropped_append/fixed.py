"""The result of pytorch#197896, computed in another way."""

import torch
from torch import Tensor


def run() -> Tensor:
    calls: list[int] = []

    def program(x: Tensor) -> Tensor:
        calls.append(1)
        return x + 1

    out: Tensor = torch.compile(program)(torch.ones(2))
    return out * len(calls)
