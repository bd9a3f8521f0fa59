"""pytorch#187340: nextafter of 16-bit numbers is computed in 32 bits, and does nothing."""

import torch
from torch import Tensor

OP = "nextafter"


def program(x: Tensor) -> Tensor:
    return torch.nextafter(x, x + 1) - x


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(1.0, 65.0).half())
    return out


if __name__ == "__main__":
    print(run())
