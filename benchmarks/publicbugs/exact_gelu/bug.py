"""A port of a model that was trained with the tanh form of GELU computes the exact one."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded

BUG = Bug(
    "NVIDIA-NeMo/Megatron-Bridge#4661",
    "port",
    Guilty(("gelu",), near=("*gate*", "mul", "*up*")),
    "outputs are a few ten-thousandths off",
    tolerance=1e-6,
    planted=True,
    held_out=True,
)


class Mlp(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.gate(x), approximate=self.form) * self.up(x))
        return out


class Merged(nn.Module):
    """The original: both projections in one."""

    def __init__(self) -> None:
        super().__init__()
        parts = seeded(Mlp("tanh"))
        assert isinstance(parts, Mlp)
        self.both, self.down = nn.Linear(8, 32), parts.down
        with torch.no_grad():
            self.both.weight.copy_(torch.cat([parts.gate.weight, parts.up.weight]))
            self.both.bias.copy_(torch.cat([parts.gate.bias, parts.up.bias]))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, -1)
        out: Tensor = self.down(F.gelu(gate, approximate="tanh") * up)
        return out


@torch.no_grad()
def infer(model: nn.Module) -> list[Tensor]:
    return [model(numbers(5, 8) * 4)]


def run() -> list[Tensor]:
    return infer(seeded(Mlp("none")))
