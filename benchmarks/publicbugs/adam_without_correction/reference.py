"""PyTorch's own AdamW."""

from torch import Tensor, optim

from benchmarks.publicbugs.adam_without_correction.bug import train


def run() -> list[Tensor]:
    return train(optim.AdamW, lr=0.01, weight_decay=0.01)
