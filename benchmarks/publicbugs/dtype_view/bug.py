"""pytorch#198101: what reads a dtype view of an input is computed after a later write."""

import torch
from torch import Tensor

OP = "sub"


def program(x: Tensor) -> Tensor:
    y = x.view(torch.int32) * 2
    y.sub_(-4)
    x[:, 2:5] = 2
    return y.view(torch.int64)


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(-12, 12).reshape(4, 6))
    return out


if __name__ == "__main__":
    print(run())
