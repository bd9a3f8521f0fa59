"""A tenth of the new weights, nine tenths of the old."""

from torch import Tensor

from benchmarks.publicbugs.ema_backwards.bug import train


def run() -> list[Tensor]:
    return train(weight=1 - 0.9)
