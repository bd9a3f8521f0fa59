"""The tanh form."""

from torch import Tensor

from benchmarks.publicbugs.exact_gelu.bug import Mlp, infer
from benchmarks.publicbugs.pieces import seeded


def run() -> list[Tensor]:
    return infer(seeded(Mlp("tanh")))
