"""The backward of a compiled region runs under the outer autocast that the region turned off."""

import torch
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded

BUG = Bug(
    "pytorch/pytorch#179804",
    "compiled",
    Guilty(("mm", "matmul", "linear", "grad*", "to", "to_copy", "permute", "t", "backward")),
    "compiled, the weight's gradient has the precision of bfloat16",
    trains=True,
    tolerance=1e-5,
    held_out=True,
)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(16, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.amp.autocast("cpu", enabled=False):
            return x.float() @ self.proj.weight.float().T


def train(outer: bool) -> list[Tensor]:
    model = seeded(Inner())
    x = numbers(4, 16).bfloat16().requires_grad_()
    with torch.amp.autocast("cpu", dtype=torch.bfloat16, enabled=outer):
        out = torch.compile(model)(x)
    out.square().sum().backward()
    return [one.grad for one in model.parameters() if one.grad is not None]


def run() -> list[Tensor]:
    return train(outer=True)
