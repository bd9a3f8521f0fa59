"""With the correction."""

from torch import Tensor

from benchmarks.publicbugs.adam_without_correction.bug import AdamW, train


def run() -> list[Tensor]:
    return train(AdamW, corrects=True)
