"""A norm that all heads share has only its own heads' gradient on each rank."""

import torch
from torch import Tensor, distributed, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded
from benchmarks.publicbugs.ranks import ColumnLinear, RowLinear, world

BUG = Bug(
    "https://github.com/NVIDIA/Megatron-LM/issues/7452#11_gdn_out_norm_missing_tp_sum",
    "parallel",
    Guilty(("grad*", "layer_norm", "param*", "all_reduce", "backward"), "*out_norm*"),
    "the norm's gradients differ between ranks",
    ranks=2,
    trains=True,
    planted=True,
    held_out=True,
)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out_norm, self.outer = nn.Linear(8, 16), nn.LayerNorm(4), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        heads = torch.tanh(self.inner(x)).view(*x.shape[:-1], -1, 4)
        out: Tensor = self.outer(self.out_norm(heads).flatten(-2))
        return out


def split(whole: Whole) -> Whole:
    whole.inner = ColumnLinear(whole.inner)  # type: ignore[assignment]
    whole.outer = RowLinear(whole.outer)  # type: ignore[assignment]
    return whole


def train(sums: bool) -> list[Tensor]:
    model = seeded(Whole())
    assert isinstance(model, Whole)
    if world() > 1:
        model = split(model)
    (model(numbers(4, 8)) - numbers(4, 8, seed=9)).square().mean().backward()
    if sums and world() > 1:
        for one in model.out_norm.parameters():
            distributed.all_reduce(one.grad)
    return [one.grad for one in model.out_norm.parameters() if one.grad is not None]


def run() -> list[Tensor]:
    return train(sums=False)
