"""pytorch#198102: a write through an unfold view with gaps makes the gaps zero."""

import torch
from torch import Tensor

OP = "add unfold"


def program(x: Tensor) -> Tensor:
    windows = x.unfold(1, 1, 5)
    windows.add_(windows)
    return x * 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(1, 25).reshape(4, 6))
    return out


if __name__ == "__main__":
    print(run())
