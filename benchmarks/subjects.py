"""The models that the truth table of faults runs on, and how they are run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dumpcmp import demo

Cache = tuple[tuple[Tensor, Tensor], ...]


class Layer(nn.Module):
    """Pre-norm attention and feed-forward, written out op by op, with a cache."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(
        self, x: Tensor, mask: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, present = self.attend(self.norm1(x), mask, past)
        x = x + self.drop(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x)))), present

    def attend(
        self, x: Tensor, mask: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        scores = torch.matmul(q, k.transpose(-1, -2)) * (q.shape[-1] ** -0.5)
        probs = torch.softmax(scores.masked_fill(mask, float("-inf")), -1)
        mixed = torch.matmul(probs, v).transpose(1, 2).reshape(batch, length, width)
        return self.out(mixed), (k, v)


class Transformer(nn.Module):
    """Six layers of width 256 over learned positions."""

    def __init__(self, width: int = 256, num_layers: int = 6, vocabulary: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(256, width)
        self.layers = nn.ModuleList(Layer(width, 8) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        start = cache[0][0].shape[2] if cache else 0
        places = torch.arange(start, start + tokens.shape[1])
        mask = places[:, None] < torch.arange(start + tokens.shape[1])[None]
        x = self.embed(tokens) + self.position(places)
        presents = []
        for index, layer in enumerate(self.layers):
            x, present = layer(x, mask, cache[index] if cache else None)
            presents.append(present)
        return self.head(self.norm(x)), tuple(presents)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to run: how it is built, and the tokens that it is given, step by step."""

    name: str
    build: Callable[[], nn.Module]
    steps: tuple[tuple[int, int], ...]  # batch and length of each step

    def model(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        torch.manual_seed(5)
        return self.build().to(dtype).eval()

    @torch.no_grad()
    def run(self, model: nn.Module) -> None:
        """Feed the same tokens whatever the model answers, so that runs stay comparable."""
        generator = torch.Generator().manual_seed(7)
        cache = None
        for shape in self.steps:
            _, cache = model(torch.randint(0, 128, shape, generator=generator), cache)


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("transformer", Transformer, ((2, 48), (2, 1))),
        Subject("decoder", demo.TinyDecoder, ((1, 24), (1, 1), (1, 1))),
    )
}
