"""The learning rate goes on from where it was."""

from torch import Tensor

from benchmarks.publicbugs.resumed_schedule.bug import train


def run() -> list[Tensor]:
    return train(resumes=True, restores=True)
