"""Each rank takes the norm of the averaged gradients, which are whole."""

from torch import Tensor

from benchmarks.publicbugs.norm_summed_again.bug import train


def run() -> list[Tensor]:
    return train(sums=False)
