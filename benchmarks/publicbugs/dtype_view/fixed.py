"""The result of pytorch#198101, computed in another way."""

import torch
from torch import Tensor


def program(x: Tensor) -> Tensor:
    y = x.view(torch.int32) * 2
    y.sub_(-4)
    torch._dynamo.graph_break()  # y is computed before x is written to
    x[:, 2:5] = 2
    return y.view(torch.int64)


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(-12, 12).reshape(4, 6))
    return out
