"""Levels are read as what they are."""

from torch import Tensor

from benchmarks.publicbugs.unsigned_levels.bug import infer


def run() -> list[Tensor]:
    return infer(signed=False)
