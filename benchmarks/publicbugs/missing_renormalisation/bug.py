"""A port of a mixture of experts does not normalise the weights of the chosen experts."""

import torch
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import Mlp, numbers, seeded

BUG = Bug(
    "pytorch/torchtitan#1448",
    "port",
    Guilty(("sum", "div", "truediv", "topk"), near=("mul", "router*", "softmax", "sigmoid")),
    "outputs are smaller by the sum of the chosen weights",
    planted=True,
)


class Router(nn.Module):
    def __init__(self, normalises: bool) -> None:
        super().__init__()
        self.normalises = normalises
        self.gate = nn.Linear(8, 4, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        chosen, index = torch.topk(torch.sigmoid(self.gate(x)), 2)
        if self.normalises:
            chosen = chosen / (chosen.sum(-1, keepdim=True) + 1e-20)
        return chosen, index


class Mixture(nn.Module):
    """Each expert runs on the tokens that chose it."""

    def __init__(self, normalises: bool) -> None:
        super().__init__()
        self.router = Router(normalises)
        self.experts = nn.ModuleList(Mlp() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        chosen, index = self.router(x)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(index == number)
            out.index_add_(0, rows, expert(x[rows]) * chosen[rows, slots, None])
        return out


class Dense(Mixture):
    """Each expert runs on all tokens; those that did not choose it have weight zero."""

    def forward(self, x: Tensor) -> Tensor:
        chosen, index = self.router(x)
        dense = torch.zeros(len(x), 4).scatter(1, index, chosen)
        every = torch.stack([expert(x) for expert in self.experts], 1)
        return torch.einsum("te,ted->td", dense, every)


@torch.no_grad()
def infer(model: nn.Module) -> list[Tensor]:
    return [seeded(model)(numbers(6, 8))]


def run() -> list[Tensor]:
    return infer(Mixture(normalises=False))
