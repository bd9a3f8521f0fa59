"""The embedded model: a small decoder that generates a few tokens, in seconds on any CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PROMPT = (17, 3, 42, 8, 25, 61, 9, 30)  # token ids; any vocabulary of 64 or more has them
SEED = 2024

Cache = tuple[tuple[Tensor, Tensor], ...]  # keys and values of each layer, so far


@dataclass(frozen=True, slots=True)
class Size:
    """How large a TinyDecoder is."""

    vocabulary: int = 128
    width: int = 64
    hidden: int = 160
    num_layers: int = 2
    num_heads: int = 4
    longest: int = 256  # sequence, in tokens


class RMSNorm(nn.Module):
    """Divides each vector by its root mean square, in float32 or wider."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight


class Attention(nn.Module):
    """Causal self-attention with rotary positions and a cache of keys and values."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.num_heads = size.num_heads
        self.q_proj = nn.Linear(size.width, size.width, bias=False)
        self.k_proj = nn.Linear(size.width, size.width, bias=False)
        self.v_proj = nn.Linear(size.width, size.width, bias=False)
        self.o_proj = nn.Linear(size.width, size.width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q = rotate(self._heads(self.q_proj(x)), cos, sin)
        k = rotate(self._heads(self.k_proj(x)), cos, sin)
        v = self._heads(self.v_proj(x))
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        batch, length = x.shape[:2]
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1)), (k, v)

    def _heads(self, x: Tensor) -> Tensor:
        batch, length = x.shape[:2]
        return x.view(batch, length, self.num_heads, -1).transpose(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of channels of `x` by its position's angle."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class MLP(nn.Module):
    """A gated feed-forward layer."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size.width, size.hidden, bias=False)
        self.up_proj = nn.Linear(size.width, size.hidden, bias=False)
        self.down_proj = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class Block(nn.Module):
    """One layer: attention and a feed-forward part, each behind a norm and added back."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(size.width)
        self.attn = Attention(size)
        self.mlp_norm = RMSNorm(size.width)
        self.mlp = MLP(size)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, present = self.attn(self.attn_norm(x), cos, sin, past)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), present


class TinyDecoder(nn.Module):
    """A decoder-only transformer whose head is tied to its embedding."""

    cos: Tensor
    sin: Tensor

    def __init__(self, size: Size | None = None) -> None:
        super().__init__()
        self.size = size = size or Size()
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.layers = nn.ModuleList(Block(size) for _ in range(size.num_layers))
        self.norm = RMSNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.head.weight = self.embed.weight
        self.apply(_begin)
        cos, sin = rotary_table(size.longest, size.width // size.num_heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        start = cache[0][0].shape[2] if cache else 0
        stop = start + tokens.shape[1]
        cos, sin = self.cos[start:stop], self.sin[start:stop]
        x = self.embed(tokens)
        presents = []
        for index, layer in enumerate(self.layers):
            x, present = layer(x, cos, sin, cache[index] if cache else None)
            presents.append(present)
        return self.head(self.norm(x)), tuple(presents)


@torch.no_grad()
def _begin(module: nn.Module) -> None:
    """Give `module` weights with which the model does not merely repeat its last token."""
    if isinstance(module, nn.Linear):
        module.weight.normal_(std=1.2 * module.in_features**-0.5)
    elif isinstance(module, nn.Embedding):
        module.weight.normal_(std=0.1)


def rotary_table(length: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle of each position and pair of channels."""
    speed = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), speed).repeat(1, 2)
    return angle.cos().float(), angle.sin().float()


def build(
    size: Size | None = None, dtype: torch.dtype = torch.float32, seed: int = SEED
) -> tuple[TinyDecoder, tuple[Tensor]]:
    """The model with seeded weights, and a prompt to call it with."""
    generator_state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = TinyDecoder(size).to(dtype).eval()
    torch.set_rng_state(generator_state)
    return model, (torch.tensor([PROMPT]),)


@torch.no_grad()
def generate(model: nn.Module, num_tokens: int = 4, prompt: Tensor | None = None) -> list[int]:
    """Generate `num_tokens` tokens greedily; each forward gives one."""
    tokens = torch.tensor([PROMPT]) if prompt is None else prompt
    tokens = tokens.to(next(model.parameters()).device)
    cache, chosen = None, []
    for _ in range(num_tokens):
        logits, cache = model(tokens, cache)
        tokens = logits[:, -1:].argmax(-1)
        chosen.append(int(tokens[0, 0]))
    return chosen


def main() -> None:
    """Build the model and let it generate."""
    model, _ = build()
    print("demo model generated tokens", *generate(model))


if __name__ == "__main__":
    main()
