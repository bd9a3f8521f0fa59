"""The whole sequence in one process."""

from torch import Tensor

from benchmarks.publicbugs.context_parallel_loss.bug import train


def run() -> list[Tensor]:
    return train(averages=True)
