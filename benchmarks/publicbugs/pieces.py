"""Small modules and data that several bugs share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 32


class Attention(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class Decoder(nn.Module):
    def __init__(self, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


class Mlp(nn.Module):
    """Two linear layers with a norm before."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.tanh(self.up(self.norm(x))))
        return out


def tokens(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=_generator(seed))


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=_generator(seed))


def seeded(model: nn.Module) -> nn.Module:
    """Give it weights that do not depend on what was drawn before, nor on the rank."""
    generator = _generator(7)
    with torch.no_grad():
        for name, one in sorted(model.named_parameters()):
            scale = 1.0 if one.dim() < 2 else one.shape[-1] ** -0.5
            drawn = torch.randn(one.shape, generator=generator) * 0.3 * scale
            one.copy_(drawn + float(name.endswith("norm.weight")))
    return model


def weights(model: nn.Module) -> list[Tensor]:
    return [one.detach() for one in model.parameters()]


def gradients(model: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
