"""pytorch#197896: an append to a captured list, by an object made inside, is dropped."""

import torch
from torch import Tensor

OP = ""  # no function is wrong: the list is


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


if __name__ == "__main__":
    print(run())
