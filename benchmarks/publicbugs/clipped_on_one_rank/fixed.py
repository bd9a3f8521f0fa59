"""What is counted once is still clipped on every rank."""

from torch import Tensor

from benchmarks.publicbugs.clipped_on_one_rank.bug import train


def run() -> list[Tensor]:
    return train(skips=False)
