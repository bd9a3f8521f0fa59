"""The whole batch in one process."""

from torch import Tensor

from benchmarks.publicbugs.local_token_counts.bug import train


def run() -> list[Tensor]:
    return train(counts_all=False)
