"""An append to a captured list, by an object made inside, is dropped."""

import torch
from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "pytorch/pytorch#197896",
    "compiled",
    Guilty(("mul",), near=("add",)),
    "the result counts the calls: 0 in place of 1",
)


def run() -> Tensor:
    calls: list[int] = []

    class Counter:
        def count(self) -> None:
            calls.append(1)

    def program(x: Tensor) -> Tensor:
        Counter().count()
        return x + 1

    out: Tensor = torch.compile(program)(torch.ones(2))
    return out * len(calls)
