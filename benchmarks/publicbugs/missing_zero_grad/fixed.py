"""Gradients are cleared before each step."""

from torch import Tensor

from benchmarks.publicbugs.missing_zero_grad.bug import train


def run() -> list[Tensor]:
    return train(clears=True)
