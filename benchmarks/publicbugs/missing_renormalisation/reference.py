"""The original: all experts on all tokens."""

from torch import Tensor

from benchmarks.publicbugs.missing_renormalisation.bug import Dense, infer


def run() -> list[Tensor]:
    return infer(Dense(normalises=True))
