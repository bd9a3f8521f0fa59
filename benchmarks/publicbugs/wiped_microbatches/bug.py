"""A pipeline stage that is set up anew between microbatches throws their gradients away."""

from torch import Tensor

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded
from benchmarks.publicbugs.pipeline_scaled_again.bug import Stages, one_microbatch, whole_gradients

BUG = Bug(
    "NVIDIA-NeMo/Automodel#3530",
    "parallel",
    Guilty(("grad*", "linear", "add", "backward", "broadcast"), near=("*stage*",)),
    "gradients are those of the last microbatch",
    ranks=2,
    trains=True,
    planted=True,
    held_out=True,
)


def train(wipes: bool) -> list[Tensor]:
    model = seeded(Stages())
    assert isinstance(model, Stages)
    for number in range(3):
        if wipes:
            model.zero_grad()  # as when the stage's shapes are inferred again
        x, y = (numbers(2 + number, n, seed=number + n) for n in (8, 4))
        one_microbatch(model, x, y, 1 / 3)
    return whole_gradients(model)


def run() -> list[Tensor]:
    return train(wipes=True)
