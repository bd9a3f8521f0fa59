"""The clone that a custom op reads is dropped, though the op writes to the original."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#198031",
    "compiled",
    Guilty(("shift_rows", "clone"), near=("mul",)),
    "compiled, the first row is in all rows",
    held_out=True,
)


@torch.library.custom_op("publicbugs::shift_rows", mutates_args={"target"})
def shift_rows(source: Tensor, target: Tensor) -> None:
    """Give each row of `target` what the row before it is in `source`."""
    for row in range(1, len(target)):
        target[row].copy_(source[row - 1])


def program(x: Tensor) -> Tensor:
    shift_rows(x.clone(), x)
    return x * 1


def run() -> Tensor:
    out: Tensor = torch.compile(program)(torch.arange(12.0).reshape(4, 3))
    return out
