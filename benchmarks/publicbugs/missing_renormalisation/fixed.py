"""With the normalisation."""

from torch import Tensor

from benchmarks.publicbugs.missing_renormalisation.bug import Mixture, infer


def run() -> list[Tensor]:
    return infer(Mixture(normalises=True))
