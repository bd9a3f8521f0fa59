"""Each prompt has offsets of its own."""

from torch import Tensor

from benchmarks.publicbugs.stale_rope_deltas.bug import infer


def run() -> list[Tensor]:
    return infer(resets=True)
