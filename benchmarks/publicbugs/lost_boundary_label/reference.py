"""The whole sequence in one process."""

from torch import Tensor

from benchmarks.publicbugs.lost_boundary_label.bug import train


def run() -> list[Tensor]:
    return train(shifts_parts=False)
