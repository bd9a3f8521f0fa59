"""pytorch#191499: the minimum of 16 or more small integers starts from 0."""

import torch
from torch import Tensor

OP = "min"


def program(x: Tensor) -> Tensor:
    return x.min() + x


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(5, 77).to(torch.uint8))
    return out


if __name__ == "__main__":
    print(run())
