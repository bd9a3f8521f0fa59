"""AdamW adds its weight decay to the gradient, as Adam does."""

from torch import Tensor, optim

from benchmarks.publicbugs.adam_without_correction.bug import train
from benchmarks.publicbugs.corpus import Bug, Guilty

BUG = Bug(
    "keras-team/keras#19051",
    "training",
    Guilty(("step", "param*", "*weight_decay*", "*optimizer*"), step=0),
    "weights with small gradients decay too fast",
    trains=True,
    planted=True,
    held_out=True,
)


def run() -> list[Tensor]:
    return train(optim.Adam, lr=0.01, weight_decay=0.1)
