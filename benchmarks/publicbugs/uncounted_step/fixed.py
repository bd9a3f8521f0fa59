"""Every step counts."""

from torch import Tensor

from benchmarks.publicbugs.adam_without_correction.bug import AdamW
from benchmarks.publicbugs.uncounted_step.bug import with_counts


def run() -> list[Tensor]:
    return with_counts(AdamW)
