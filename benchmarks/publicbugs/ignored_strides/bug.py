"""A kernel reads a tensor that is not contiguous as if it were."""

import torch
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded

BUG = Bug(
    "ROCm/aiter#5292",
    "kernel",
    Guilty(("mix*", "publicbugs*", "matmul"), near=("transpose", "T", "mul", "linear", "down*")),
    "the mixed rows are others than the product of the matrices",
    planted=True,
)


@torch.library.custom_op("publicbugs::mix", mutates_args=())
def mix(weights: Tensor, x: Tensor, minds_strides: bool) -> Tensor:
    """The product of both; the first may have any strides."""
    if not minds_strides:
        weights = weights.as_strided(weights.shape, (weights.shape[1], 1))
    return weights @ x


@mix.register_fake
def _(weights: Tensor, x: Tensor, minds_strides: bool) -> Tensor:  # noqa: ARG001
    return x.new_empty(weights.shape[0], x.shape[1])


class Mixing(nn.Module):
    def __init__(self, minds_strides: bool) -> None:
        super().__init__()
        self.minds_strides = minds_strides
        self.weights, self.down = nn.Parameter(torch.empty(6, 6)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(mix(self.weights.T, x, self.minds_strides))
        return out


class Plain(Mixing):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.weights.T @ x)
        return out


@torch.no_grad()
def infer(model: nn.Module) -> list[Tensor]:
    return [seeded(model)(numbers(6, 8))]


def run() -> list[Tensor]:
    return infer(Mixing(minds_strides=False))
