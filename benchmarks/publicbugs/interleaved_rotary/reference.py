"""The original."""

from torch import Tensor

from benchmarks.publicbugs.interleaved_rotary.bug import Original, infer


def run() -> list[Tensor]:
    return infer(Original(pairs=False))
