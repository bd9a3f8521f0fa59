"""Only the backbone is frozen."""

from torch import Tensor

from benchmarks.publicbugs.frozen_layers.bug import train


def run() -> list[Tensor]:
    return train(freezes_head=False)
