"""Half of the window on each side, attention by hand."""

from torch import Tensor

from benchmarks.publicbugs.lopsided_window.bug import infer


def run() -> list[Tensor]:
    return infer(even=True, fused=False)
