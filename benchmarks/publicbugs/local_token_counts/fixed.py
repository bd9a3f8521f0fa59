"""All ranks divide by the count of all ranks."""

from torch import Tensor

from benchmarks.publicbugs.local_token_counts.bug import train


def run() -> list[Tensor]:
    return train(counts_all=True)
