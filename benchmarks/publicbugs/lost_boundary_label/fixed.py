"""Labels are shifted before the sequence is split."""

from torch import Tensor

from benchmarks.publicbugs.lost_boundary_label.bug import train


def run() -> list[Tensor]:
    return train(shifts_parts=False)
