"""The original."""

from torch import Tensor

from benchmarks.publicbugs.exact_gelu.bug import Merged, infer


def run() -> list[Tensor]:
    return infer(Merged())
