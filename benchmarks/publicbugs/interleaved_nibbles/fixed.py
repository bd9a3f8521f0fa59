"""Unpacked as they were packed."""

from torch import Tensor

from benchmarks.publicbugs.interleaved_nibbles.bug import infer


def run() -> list[Tensor]:
    return infer(interleaves=False)
