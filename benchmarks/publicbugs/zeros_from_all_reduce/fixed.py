"""The reduction is right."""

from torch import Tensor

from benchmarks.publicbugs.zeros_from_all_reduce.bug import infer


def run() -> list[Tensor]:
    return infer(fails=False)
