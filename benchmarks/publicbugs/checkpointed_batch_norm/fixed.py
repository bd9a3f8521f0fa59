"""The block with batch norm is not checkpointed."""

from torch import Tensor

from benchmarks.publicbugs.checkpointed_batch_norm.bug import train


def run() -> list[Tensor]:
    return train(recomputes=False)
