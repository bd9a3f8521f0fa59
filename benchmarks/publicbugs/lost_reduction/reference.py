"""One process."""

from torch import Tensor

from benchmarks.publicbugs.lost_reduction.bug import train


def run() -> list[Tensor]:
    return train(loses=False)
