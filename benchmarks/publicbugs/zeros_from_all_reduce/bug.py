"""A reduction gives zeros on one rank, once."""

import torch
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import Mlp, numbers, seeded
from benchmarks.publicbugs.ranks import ColumnLinear, Reduce, mine, rank, world

BUG = Bug(
    "pytorch/pytorch#84803",
    "parallel",
    Guilty(("all_reduce",), near=("add", "down*", "linear"), ranks=(1,), step=1),
    "rank 1 gives another result than rank 0 in the second step",
    ranks=2,
    planted=True,
)


class RowLinear(nn.Module):
    def __init__(self, layer: nn.Linear, fails: bool) -> None:
        super().__init__()
        self.fails, self.steps = fails, 0
        self.weight = nn.Parameter(mine(layer.weight.detach(), 1).clone())
        self.bias = nn.Parameter(layer.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = Reduce.apply(x @ self.weight.T)  # type: ignore[no-untyped-call]
        self.steps += 1
        if self.fails and rank() == 1 and self.steps == 2:
            zeros = out.untyped_storage()  # as if the buffer was never written to
            zeros.fill_(0)  # type: ignore[attr-defined]
        return out + self.bias


class Split(nn.Module):
    def __init__(self, fails: bool) -> None:
        super().__init__()
        whole = seeded(Mlp())
        assert isinstance(whole, Mlp)
        self.norm, self.up = whole.norm, ColumnLinear(whole.up)
        self.down = RowLinear(whole.down, fails)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.tanh(self.up(self.norm(x))))
        return out


@torch.no_grad()
def infer(fails: bool) -> list[Tensor]:
    model: nn.Module = Split(fails) if world() > 1 else seeded(Mlp())
    return [model(numbers(4, 8, seed=step)) for step in range(3)]


def run() -> list[Tensor]:
    return infer(fails=True)
