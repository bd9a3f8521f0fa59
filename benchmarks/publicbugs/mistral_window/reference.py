"""Eager attention with the window."""

from torch import Tensor

from benchmarks.publicbugs.mistral_window.bug import infer


def run() -> list[Tensor]:
    return infer("eager")
