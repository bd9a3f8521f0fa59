"""Under sequence parallelism the gradients of the last norm are not summed over ranks."""

from torch import Tensor, distributed, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded
from benchmarks.publicbugs.ranks import mine, world

BUG = Bug(
    "NVIDIA/Megatron-LM#1446",
    "parallel",
    Guilty(("grad*", "param*", "layer_norm", "all_reduce", "backward"), "*final_norm*"),
    "the norm's gradients are those of each rank's tokens",
    ranks=2,
    trains=True,
    planted=True,
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.final_norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.final_norm(self.inner(x)))
        return out


def train(forgets: bool) -> list[Tensor]:
    model = seeded(Model())
    assert isinstance(model, Model)
    (model(mine(numbers(2, 6, 8), 1)) - mine(numbers(2, 6, 4, seed=9), 1)).square().sum().backward()
    for name, one in model.named_parameters():
        if world() > 1 and not (forgets and "final_norm" in name):
            distributed.all_reduce(one.grad)
    return [one.grad for one in model.parameters() if one.grad is not None]


def run() -> list[Tensor]:
    return train(forgets=True)
