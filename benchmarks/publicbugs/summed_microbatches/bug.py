"""A pipeline sums the gradients of microbatches and does not average them."""

from torch import Tensor, optim

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded
from benchmarks.publicbugs.pipeline_scaled_again.bug import Stages, one_microbatch, whole_gradients

BUG = Bug(
    "deepspeedai/DeepSpeed#7773",
    "parallel",
    Guilty(("mul", "div", "truediv", "mean", "grad*", "square"), near=("*stage*", "sub", "linear")),
    "gradients are four times as large",
    ranks=2,
    trains=True,
    planted=True,
    held_out=True,
)


def train(scale: float) -> list[Tensor]:
    model = seeded(Stages())
    assert isinstance(model, Stages)
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    for number in range(4):
        x, y = (numbers(3, n, seed=number + n) for n in (8, 4))
        one_microbatch(model, x, y, scale)
    optimizer.step()
    return whole_gradients(model)


def run() -> list[Tensor]:
    return train(scale=1.0)
