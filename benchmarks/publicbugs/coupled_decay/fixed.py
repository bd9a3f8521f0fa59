"""The weight decay is decoupled."""

from torch import Tensor, optim

from benchmarks.publicbugs.adam_without_correction.bug import train


def run() -> list[Tensor]:
    return train(optim.Adam, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True)
