"""The clone is another tensor by its values."""

import torch
from torch import Tensor

from benchmarks.publicbugs.clone_of_the_written.bug import shift_rows


def program(x: Tensor) -> Tensor:
    shift_rows(torch.cat([x, x])[: len(x)], x)
    return x * 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(12.0).reshape(4, 3))
    return out
