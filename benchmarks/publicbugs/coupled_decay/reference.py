"""PyTorch's AdamW, one parameter at a time."""

from torch import Tensor, optim

from benchmarks.publicbugs.adam_without_correction.bug import train


def run() -> list[Tensor]:
    return train(optim.AdamW, lr=0.01, weight_decay=0.1, foreach=False)
