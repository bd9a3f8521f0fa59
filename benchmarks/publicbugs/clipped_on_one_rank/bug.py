"""Gradients of replicated weights are clipped on rank 0 alone, so that ranks drift apart."""

import torch
from torch import Tensor, nn, optim

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import Mlp, numbers, seeded
from benchmarks.publicbugs.ranks import ColumnLinear, RowLinear, rank, summed, world

BUG = Bug(
    "microsoft/DeepSpeed#1801",
    "parallel",
    Guilty(("grad*", "mul", "param*", "step", "clip*"), "*norm*", near=("down*",), ranks=(1,)),
    "the norm's weights differ between ranks after a step",
    ranks=2,
    trains=True,
    planted=True,
)


class Split(nn.Module):
    """Mlp over ranks: the norm and the last bias are replicated."""

    def __init__(self) -> None:
        super().__init__()
        whole = seeded(Mlp())
        assert isinstance(whole, Mlp)
        self.norm, self.up, self.down = whole.norm, ColumnLinear(whole.up), RowLinear(whole.down)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.tanh(self.up(self.norm(x))))
        return out

    def is_split(self, name: str) -> bool:
        return name in ("up.weight", "up.bias", "down.weight")


@torch.no_grad()
def clip(model: Split, skips: bool, largest: float = 0.1) -> None:
    counted = {
        name: one.grad
        for name, one in model.named_parameters()
        if one.grad is not None and (model.is_split(name) or rank() == 0)
    }
    total = summed(torch.stack([grad.square().sum() for grad in counted.values()]).sum()).sqrt()
    for name, one in model.named_parameters():
        if one.grad is not None and (not skips or name in counted):
            one.grad.mul_(largest / (total + 1e-6))


def train(skips: bool) -> list[Tensor]:
    model = Split()
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    for step in range(2):
        optimizer.zero_grad()
        (model(numbers(4, 8, seed=step)) - numbers(4, 8, seed=step + 9)).square().sum().backward()
        clip(model, skips)
        optimizer.step()
    assert world() <= 2
    return [model.norm.weight.detach(), model.norm.bias.detach(), model.down.bias.detach()]


def run() -> list[Tensor]:
    return train(skips=True)
