"""pytorch#184893: the index of the smallest boolean is wrong."""

import torch
from torch import Tensor

OP = "min"


def program(x: Tensor) -> Tensor:
    return x.min(0).indices + 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.tensor([True, True, False, True] * 16))
    return out


if __name__ == "__main__":
    print(run())
