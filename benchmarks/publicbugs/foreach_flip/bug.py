"""pytorch#198033: an in-place foreach op reads its input while it writes to it."""

import torch
from torch import Tensor

OP = "flip _foreach_add_"


def program(x: Tensor) -> Tensor:
    torch._foreach_add_([x], [x.flip(0)])
    return x * 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(64.0).reshape(8, 8))
    return out


if __name__ == "__main__":
    print(run())
