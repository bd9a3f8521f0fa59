"""Pairs of small programs: two ways to write one thing, and ways to get it wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp

WIDTH, LENGTH = 16, 6
Way = Callable[["Parts", Tensor], object]


class Parts(nn.Module):
    """Layers to make programs of; `way` says how."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm, self.gate = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.cache: Tensor
        self.register_buffer("cache", torch.zeros(8, WIDTH))

    def forward(self, x: Tensor) -> object:
        return self.way(self, x)


def dumped(way: Way, path: Path, mode: str, dtype: torch.dtype = torch.float32) -> Path:
    """One step of a program into an archive at `path`."""
    torch.manual_seed(0)
    model = Parts(way).to(dtype).eval()
    x = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(7)).to(dtype)
    with torch.no_grad(), dumpcmp.capture(model, path, mode=mode):
        model(x)
    return path


def plain(parts: Parts, x: Tensor) -> Tensor:
    return parts.last(F.gelu(parts.first(x)))  # type: ignore[no-any-return]


def in_halves(parts: Parts, x: Tensor) -> Tensor:
    y, weight = F.gelu(parts.first(x)), parts.last.weight
    return F.linear(y[..., :8], weight[:, :8]) + F.linear(
        y[..., 8:], weight[:, 8:], parts.last.bias
    )


def in_chunks(parts: Parts, x: Tensor) -> Tensor:
    return torch.cat([plain(parts, chunk) for chunk in x.chunk(2, 0)])


def transposed(parts: Parts, x: Tensor) -> Tensor:
    return plain(parts, x.transpose(0, 1)).transpose(0, 1)


def in_place(parts: Parts, x: Tensor) -> Tensor:
    y = F.gelu(parts.first(x))
    y.mul_(2.0)
    return parts.last(y.div_(2.0))  # type: ignore[no-any-return]


def last_row(parts: Parts, x: Tensor) -> Tensor:
    return parts.last(F.gelu(parts.first(x))[:, -1:])  # type: ignore[no-any-return]


def in_a_dict(parts: Parts, x: Tensor) -> dict[str, Tensor]:
    return {"logits": plain(parts, x)}


def rolled(parts: Parts, x: Tensor) -> Tensor:
    return parts.last(F.gelu(parts.first(x)).roll(1, 1))  # type: ignore[no-any-return]


def other_gelu(parts: Parts, x: Tensor) -> Tensor:
    return parts.last(F.gelu(parts.first(x), approximate="tanh"))  # type: ignore[no-any-return]


def without_gelu(parts: Parts, x: Tensor) -> Tensor:
    return parts.last(parts.first(x))  # type: ignore[no-any-return]


def _heads(x: Tensor) -> Tensor:
    return x.view(2, LENGTH, 4, 4).transpose(1, 2)


def _joined(parts: Parts, mixed: Tensor) -> Tensor:
    return parts.last(mixed.transpose(1, 2).reshape(2, LENGTH, WIDTH))  # type: ignore[no-any-return]


def attention(parts: Parts, x: Tensor) -> Tensor:
    q, k, v = (_heads(layer(x)) for layer in (parts.q, parts.k, parts.v))
    return _joined(parts, F.scaled_dot_product_attention(q, k, v, is_causal=True))


def scaled_query(parts: Parts, x: Tensor) -> Tensor:
    q, k, v = (_heads(layer(x)) for layer in (parts.q, parts.k, parts.v))
    return _joined(parts, F.scaled_dot_product_attention(q * 0.5, k, v, is_causal=True, scale=1.0))


def attention_by_hand(parts: Parts, x: Tensor) -> Tensor:
    q, k, v = (_heads(layer(x)) for layer in (parts.q, parts.k, parts.v))
    scores = (q @ k.transpose(-1, -2)) / 2.0
    later = torch.ones(LENGTH, LENGTH).tril() == 0
    return _joined(parts, scores.masked_fill(later, -torch.inf).softmax(-1) @ v)


def merged(parts: Parts, x: Tensor) -> Tensor:
    layers = parts.q, parts.k, parts.v
    weight = torch.cat([layer.weight for layer in layers])
    bias = torch.cat([layer.bias for layer in layers])
    q, k, v = map(_heads, F.linear(x, weight, bias).chunk(3, -1))
    return _joined(parts, F.scaled_dot_product_attention(q, k, v, is_causal=True))


def swapped(parts: Parts, x: Tensor) -> Tensor:
    q, k, v = (_heads(layer(x)) for layer in (parts.q, parts.v, parts.k))
    return _joined(parts, F.scaled_dot_product_attention(q, k, v, is_causal=True))


def without_mask(parts: Parts, x: Tensor) -> Tensor:
    q, k, v = (_heads(layer(x)) for layer in (parts.q, parts.k, parts.v))
    return _joined(parts, F.scaled_dot_product_attention(q, k, v))


def norm(parts: Parts, x: Tensor) -> Tensor:
    return parts.last(parts.norm(x))  # type: ignore[no-any-return]


def norm_in_float32(parts: Parts, x: Tensor) -> Tensor:
    weight, bias = parts.norm.weight.float(), parts.norm.bias.float()
    return parts.last(F.layer_norm(x.float(), (WIDTH,), weight, bias).to(x.dtype))  # type: ignore[no-any-return]


def other_eps(parts: Parts, x: Tensor) -> Tensor:
    return parts.last(F.layer_norm(x, (WIDTH,), parts.norm.weight, parts.norm.bias, 1e-2))  # type: ignore[no-any-return]


def strided(parts: Parts, x: Tensor) -> Tensor:
    y = parts.first(x).transpose(0, 1)
    return parts.last(y.as_strided((2, LENGTH, WIDTH), (LENGTH * WIDTH, WIDTH, 1)))  # type: ignore[no-any-return]


def two_layers(parts: Parts, x: Tensor) -> Tensor:
    return parts.last(parts.first(x))  # type: ignore[no-any-return]


def through_scratch(parts: Parts, x: Tensor) -> Tensor:
    room = torch.empty(2, LENGTH, 2 * WIDTH)
    room[..., :WIDTH] = parts.first(x)
    return parts.last(room[..., :WIDTH])  # type: ignore[no-any-return]


def _mixture(parts: Parts, x: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
    mixed = torch.zeros_like(x)
    for number, expert in enumerate(parts.experts):
        share = (shares * (chosen == number)).sum(-1, keepdim=True)
        mixed = mixed + share * expert(x)
    return mixed


def experts(parts: Parts, x: Tensor) -> Tensor:
    shares, chosen = parts.gate(x).softmax(-1).topk(2, -1)
    return _mixture(parts, x, shares / shares.sum(-1, keepdim=True), chosen)


def gathered_experts(parts: Parts, x: Tensor) -> Tensor:
    logits = parts.gate(x)
    raised = (logits - logits.amax(-1, keepdim=True)).exp()
    shares, chosen = (raised / raised.sum(-1, keepdim=True)).topk(2, -1)
    shares, mixed = shares / shares.sum(-1, keepdim=True), torch.zeros_like(x)
    for number, expert in enumerate(parts.experts):
        rows = (chosen == number).any(-1)
        share = (shares * (chosen == number)).sum(-1, keepdim=True)[rows]
        mixed[rows] += share * expert(x[rows])
    return mixed


def unnormalised_experts(parts: Parts, x: Tensor) -> Tensor:
    return _mixture(parts, x, *parts.gate(x).softmax(-1).topk(2, -1))


def written_cache(parts: Parts, x: Tensor) -> Tensor:
    parts.cache.narrow(0, 1, 1).copy_(parts.first(x)[:1, 0])
    return parts.last(parts.cache + x[:, :1])  # type: ignore[no-any-return]


def indexed_cache(parts: Parts, x: Tensor) -> Tensor:
    parts.cache[1:2] = parts.first(x)[:1, 0]
    return parts.last(parts.cache + x[:, :1])  # type: ignore[no-any-return]


def unwritten_cache(parts: Parts, x: Tensor) -> Tensor:
    parts.first(x)
    return parts.last(parts.cache + x[:, :1])  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Case:
    """Two programs, and which op tells that they are not one; none where they are."""

    golden: Way
    target: Way
    places: frozenset[str] = field(default_factory=frozenset)  # functions, either side's
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return f"{self.golden.__name__} {self.target.__name__} {str(self.dtype)[6:]}"


SHORT = torch.bfloat16
SOUND = [
    Case(plain, plain), Case(plain, in_halves), Case(plain, in_chunks), Case(plain, transposed),
    Case(plain, in_place), Case(plain, last_row), Case(plain, in_a_dict),
    Case(attention, scaled_query), Case(attention, attention_by_hand), Case(attention, merged),
    Case(attention, attention_by_hand, dtype=SHORT), Case(norm, norm_in_float32, dtype=SHORT),
    Case(two_layers, strided), Case(two_layers, through_scratch),
    Case(through_scratch, through_scratch), Case(experts, gathered_experts),
    Case(experts, gathered_experts, dtype=SHORT), Case(written_cache, indexed_cache),
]  # fmt: skip
WRONG = [
    Case(plain, rolled, frozenset(("roll",))), Case(plain, other_gelu, frozenset(("gelu",))),
    Case(plain, other_gelu, frozenset(("gelu",)), SHORT),
    Case(plain, without_gelu, frozenset(("gelu",))),
    Case(attention, swapped, frozenset(("scaled_dot_product_attention",))),
    Case(attention, without_mask, frozenset(("scaled_dot_product_attention",))),
    Case(norm, other_eps, frozenset(("layer_norm",))),
    Case(experts, unnormalised_experts, frozenset(("sum", "div", "mul"))),
    Case(gathered_experts, unnormalised_experts, frozenset(("sum", "div", "mul")), SHORT),
    Case(unnormalised_experts, experts, frozenset(("sum", "div", "mul")), SHORT),
    Case(written_cache, unwritten_cache, frozenset(("copy", "narrow", "linear", "getitem"))),
]  # fmt: skip
