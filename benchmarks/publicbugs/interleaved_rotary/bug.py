"""A port rotates halves of a head with angles that lie in pairs."""

import torch
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded

BUG = Bug(
    "huggingface/transformers#47403",
    "port",
    Guilty(
        ("repeat_interleave", "cat", "repeat", "cos", "sin", "mul"), near=("add", "*attention*")
    ),
    "queries and keys are rotated by each other's angles",
    planted=True,
    held_out=True,
)


class Attention(nn.Module):
    def __init__(self, pairs: bool) -> None:
        super().__init__()
        self.pairs = pairs
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def rotated(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(float(len(x))), 10.0 ** -torch.arange(4.0))
        both = angles.repeat_interleave(2, -1) if self.pairs else torch.cat([angles, angles], -1)
        return x * both.cos() + torch.cat([-x[:, 4:], x[:, :4]], -1) * both.sin()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = self.rotated(q) @ self.rotated(k).T / 8**0.5
        out: Tensor = self.out(torch.softmax(scores, -1) @ v)
        return out


class Original(Attention):
    """Rotation as a product of complex numbers."""

    def rotated(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(float(len(x))), 10.0 ** -torch.arange(4.0))
        turned = torch.complex(x[:, :4], x[:, 4:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag], -1)


@torch.no_grad()
def infer(model: nn.Module) -> list[Tensor]:
    return [seeded(model)(numbers(6, 8) * 2)]


def run() -> list[Tensor]:
    return infer(Attention(pairs=True))
