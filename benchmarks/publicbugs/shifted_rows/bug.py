"""pytorch#197829: rows that are shifted in place are copied over overlapping memory."""

import torch
from torch import Tensor

OP = "setitem"


def program(x: Tensor) -> Tensor:
    x[1:] = x[:-1].clone()
    return x * 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(768.0).reshape(3, 16, 16))
    return out


if __name__ == "__main__":
    print(run())
