"""Offsets of positions that an earlier prompt left behind are used for the next prompt."""

import torch
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded

BUG = Bug(
    "huggingface/transformers#36009",
    "hugging face",
    Guilty(
        ("add", "arange", "mul", "outer", "cos", "sin"), near=("*rotary*", "*attention*"), step=1
    ),
    "the second prompt has other outputs than alone",
    planted=True,
    held_out=True,
)


class Attention(nn.Module):
    """Attention with rotary positions, and a learned scale of positions that sees where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        angles = torch.outer(places, 10.0 ** -torch.arange(4.0))
        cos, sin = angles.cos(), angles.sin()
        first = torch.cat([cos, cos], -1)
        second = torch.cat([sin, sin], -1)
        q = q * first + torch.cat([-q[:, 4:], q[:, :4]], -1) * second
        k = k * first + torch.cat([-k[:, 4:], k[:, :4]], -1) * second
        scores = q @ k.T / 8**0.5 + 0.05 * places
        out: Tensor = self.out(torch.softmax(scores, -1) @ (v * (1 + 0.1 * places[:, None])))
        return out


class Model(nn.Module):
    """An image of several tokens takes one position, so that text behind it is moved."""

    def __init__(self, resets: bool) -> None:
        super().__init__()
        self.resets = resets
        self.attention = Attention()
        self.delta: int | None = None

    def forward(self, x: Tensor, image: int) -> Tensor:
        if self.delta is None or self.resets:
            self.delta = 1 - image if image else 0
        places = (torch.arange(len(x)) + self.delta).clamp(min=0).float()
        out: Tensor = x + self.attention(x, places)
        return out


@torch.no_grad()
def infer(resets: bool) -> list[Tensor]:
    model = seeded(Model(resets))
    return [model(numbers(6, 8), 3), model(numbers(5, 8, seed=2), 0)]


def run() -> list[Tensor]:
    return infer(resets=False)
