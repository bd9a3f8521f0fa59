"""Under context parallelism the loss is the sum of the ranks' means, twice what it should be."""

from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import Mlp, gradients, numbers, seeded
from benchmarks.publicbugs.ranks import Reduce, average_gradients, mine, world

BUG = Bug(
    "NovaSky-AI/SkyRL#1420",
    "parallel",
    Guilty(("all_reduce", "mean", "div", "truediv", "mul"), near=("square", "grad*", "sub")),
    "the loss is twice that of one device",
    ranks=2,
    trains=True,
    planted=True,
)


class Model(nn.Module):
    def __init__(self, averages: bool) -> None:
        super().__init__()
        self.averages = averages
        self.body = seeded(Mlp())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = (self.body(x) - y).square().mean()
        total: Tensor = Reduce.apply(loss)  # type: ignore[no-untyped-call]
        return total / world() if self.averages else total


def train(averages: bool) -> list[Tensor]:
    model = Model(averages)
    loss = model(mine(numbers(2, 6, 8), 1), mine(numbers(2, 6, 8, seed=9), 1))
    (loss * world() if averages else loss).backward()  # the gradient of a rank's own mean
    average_gradients(model)
    return [loss.detach(), *gradients(model)]


def run() -> list[Tensor]:
    return train(averages=False)
