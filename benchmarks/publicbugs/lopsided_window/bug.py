"""A window that goes both ways is as wide as the whole window on one side."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded

BUG = Bug(
    "huggingface/transformers#40700",
    "hugging face",
    Guilty(
        ("and", "le", "lt", "ge", "gt", "abs", "logical_and", "scaled_dot_product_attention"),
        near=("sub", "softmax", "masked_fill", "*attention*"),
    ),
    "outputs see twice as many tokens before them",
    planted=True,
    held_out=True,
)


class Attention(nn.Module):
    def __init__(self, even: bool, fused: bool) -> None:
        super().__init__()
        self.even, self.fused = even, fused
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def mask(self, length: int) -> Tensor:
        place = torch.arange(length)
        behind = place[:, None] - place
        return (behind <= (2 if self.even else 3)) & (behind >= -2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = self.mask(len(x))
        if self.fused:
            mixed = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]
        else:
            scores = (q @ k.T / 8**0.5).masked_fill(~mask, float("-inf"))
            mixed = torch.softmax(scores, -1) @ v
        out: Tensor = self.out(mixed)
        return out


class Encoder(nn.Module):
    def __init__(self, even: bool, fused: bool) -> None:
        super().__init__()
        self.attention, self.norm = Attention(even, fused), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.attention(self.norm(x))
        return out


@torch.no_grad()
def infer(even: bool, fused: bool = True) -> list[Tensor]:
    return [seeded(Encoder(even, fused))(numbers(8, 8))]


def run() -> list[Tensor]:
    return infer(even=False)
