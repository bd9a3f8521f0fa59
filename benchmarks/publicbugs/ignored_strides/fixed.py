"""The kernel minds the strides."""

from torch import Tensor

from benchmarks.publicbugs.ignored_strides.bug import Mixing, infer


def run() -> list[Tensor]:
    return infer(Mixing(minds_strides=True))
