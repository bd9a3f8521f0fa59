"""pytorch#195066: _int_mm reads a dim of size 1 with stride 0 wrongly, compiled or not."""

import torch
from torch import Tensor, nn

OP, EAGER_IS_WRONG = "_int_mm", True


class Product(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = torch._int_mm(x.as_strided((17, 1), (1, 0)), y)
        return out + 1


def run() -> Tensor:
    x, y = torch.arange(-8, 9, dtype=torch.int8), torch.arange(-8, 8, dtype=torch.int8)
    out: Tensor = Product()(x[:, None], y[None])
    return out


if __name__ == "__main__":
    print(run())
