"""pytorch#133512: what was written in place has other strides than eager's."""

import torch
from torch import Tensor

OP = "as_strided_copy"


def program(x: Tensor) -> Tensor:
    x.add_(1)
    return torch.as_strided_copy(x, (3,), (2,))


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(10)[::2])
    return out


if __name__ == "__main__":
    print(run())
