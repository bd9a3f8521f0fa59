"""_int_mm reads a dim of size 1 with stride 0 wrongly, compiled or not."""

import torch
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#195066",
    "kernel",
    Guilty(("int_mm",), near=("as_strided", "add")),
    "the product of a column and a row is another",
)


class Product(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = torch._int_mm(x.as_strided((17, 1), (1, 0)), y)
        return out + 1


def run() -> Tensor:
    x, y = torch.arange(-8, 9, dtype=torch.int8), torch.arange(-8, 8, dtype=torch.int8)
    out: Tensor = Product()(x[:, None], y[None])
    return out
