"""The whole sequence in one process."""

from torch import Tensor

from benchmarks.publicbugs.sequence_parallel_norm.bug import train


def run() -> list[Tensor]:
    return train(forgets=False)
