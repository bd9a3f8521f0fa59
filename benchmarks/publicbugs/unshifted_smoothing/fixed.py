"""The labels are shifted."""

from torch import Tensor

from benchmarks.publicbugs.unshifted_smoothing.bug import train


def run() -> list[Tensor]:
    return train(shifts=True)
