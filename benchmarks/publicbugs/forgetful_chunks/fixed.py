"""Chunks go on from the state before them."""

from torch import Tensor

from benchmarks.publicbugs.forgetful_chunks.bug import infer


def run() -> list[Tensor]:
    return infer(remembers=True)
