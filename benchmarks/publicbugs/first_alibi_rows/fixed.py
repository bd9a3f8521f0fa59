"""The rows of the new tokens."""

from torch import Tensor

from benchmarks.publicbugs.first_alibi_rows.bug import infer


def run() -> list[Tensor]:
    return infer(takes_last=True)
