"""The optimizer's state is loaded."""

from torch import Tensor

from benchmarks.publicbugs.resumed_optimizer.bug import train


def run() -> list[Tensor]:
    return train(loads=True)
