"""There is no outer autocast, which the region turns off anyway."""

from torch import Tensor

from benchmarks.publicbugs.autocast_in_backward.bug import train


def run() -> list[Tensor]:
    return train(outer=False)
