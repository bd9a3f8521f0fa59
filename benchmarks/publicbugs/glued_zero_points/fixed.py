"""Zero points are read with their own dtype."""

from torch import Tensor

from benchmarks.publicbugs.glued_zero_points.bug import infer


def run() -> list[Tensor]:
    return infer(glues=False)
