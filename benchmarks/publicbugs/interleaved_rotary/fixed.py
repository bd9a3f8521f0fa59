"""Angles that lie in halves, too."""

from torch import Tensor

from benchmarks.publicbugs.interleaved_rotary.bug import Attention, infer


def run() -> list[Tensor]:
    return infer(Attention(pairs=False))
