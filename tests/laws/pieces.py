"""What programs at random are made of: each piece has ways to write it, and ways to get it wrong.

A piece maps a tensor of (batch, tokens, width) to one like it. Methods under `ways` are the same
function in exact arithmetic, those under `faults` are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS = 8, 2
HALF = WIDTH // 2
LONGEST = 12  # tokens of all steps together

PIECES: dict[str, type[Piece]] = {}


class Piece(nn.Module):
    """One thing that a program does; `way` names the method that does it."""

    ways: ClassVar[tuple[str, ...]] = ()  # the first is the usual one
    faults: ClassVar[tuple[str, ...]] = ()
    is_by_row: ClassVar[bool] = True  # what it does to one row of the batch depends on no other
    is_traced: ClassVar[bool] = True  # torch.compile and fx take it as one graph
    num_inputs: ClassVar[int] = 1

    def __init__(self) -> None:
        super().__init__()
        self.way = self.ways[0]
        self.short = torch.bfloat16  # what a recast goes through; float64 where exactness is asked

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.ways:
            PIECES[cls.__name__] = cls

    def choose(self, way: str) -> None:
        """Do it in this `way` from now on."""
        self.way = way

    def forward(self, *given: Tensor) -> Tensor:
        run: Callable[..., Tensor] = getattr(self, self.way)
        return run(*given)


class Affine(Piece):
    """A linear layer."""

    ways = (
        "plain", "functional", "halves", "columns", "added", "addmm", "einsum", "matmul", "rows",
        "turned", "without_autocast", "strided",
    )  # fmt: skip
    faults = ("no_bias", "other_weight_turn", "bias_twice", "scaled", "half_missing")

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def plain(self, x: Tensor) -> Tensor:
        return self.linear(x)  # type: ignore[no-any-return]

    def functional(self, x: Tensor) -> Tensor:
        return F.linear(x, self.linear.weight, self.linear.bias)

    def halves(self, x: Tensor) -> Tensor:
        weight = self.linear.weight
        left = F.linear(x[..., :HALF], weight[:, :HALF], self.linear.bias)
        return left + F.linear(x[..., HALF:], weight[:, HALF:])

    def columns(self, x: Tensor) -> Tensor:
        weights, biases = self.linear.weight.chunk(2), self.linear.bias.chunk(2)
        return torch.cat([F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)], -1)

    def added(self, x: Tensor) -> Tensor:
        return F.linear(x, self.linear.weight) + self.linear.bias

    def addmm(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, WIDTH)
        return torch.addmm(self.linear.bias, flat, self.linear.weight.t()).view(x.shape)

    def einsum(self, x: Tensor) -> Tensor:
        return torch.einsum("bti,oi->bto", x, self.linear.weight) + self.linear.bias

    def matmul(self, x: Tensor) -> Tensor:
        return self.linear.bias + x @ self.linear.weight.transpose(0, 1)

    def rows(self, x: Tensor) -> Tensor:
        return torch.stack([self.linear(row) for row in x])

    def turned(self, x: Tensor) -> Tensor:
        return self.linear(x.transpose(0, 1)).transpose(0, 1)  # type: ignore[no-any-return]

    def without_autocast(self, x: Tensor) -> Tensor:
        weight, bias = self.linear.weight.float(), self.linear.bias.float()
        if x.dtype is torch.float64:
            weight, bias = self.linear.weight, self.linear.bias
        return F.linear(x.to(weight.dtype), weight, bias).to(x.dtype)

    def strided(self, x: Tensor) -> Tensor:
        y = x.contiguous()
        size, tokens = y.shape[:2]
        laid = y.as_strided((tokens, size, WIDTH), (WIDTH, tokens * WIDTH, 1))
        return self.linear(laid).transpose(0, 1)  # type: ignore[no-any-return]

    def no_bias(self, x: Tensor) -> Tensor:
        return F.linear(x, self.linear.weight)

    def other_weight_turn(self, x: Tensor) -> Tensor:
        return F.linear(x, self.linear.weight.t(), self.linear.bias)

    def bias_twice(self, x: Tensor) -> Tensor:
        return self.plain(x) + self.linear.bias

    def scaled(self, x: Tensor) -> Tensor:
        return self.plain(x * 1.03)

    def half_missing(self, x: Tensor) -> Tensor:
        return F.linear(x[..., :HALF], self.linear.weight[:, :HALF], self.linear.bias)


class Norm(Piece):
    """A layer norm."""

    ways = ("plain", "functional", "by_hand", "by_moments", "by_token", "with_var", "affine_apart")
    faults = ("other_eps", "no_weight", "unbiased", "not_centred", "over_tokens", "left_out")

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        with torch.no_grad():
            self.norm.weight.copy_(torch.rand(WIDTH) + 0.5)
            self.norm.bias.copy_(torch.randn(WIDTH) * 0.2)

    def plain(self, x: Tensor) -> Tensor:
        return self.norm(x)  # type: ignore[no-any-return]

    def functional(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,), self.norm.weight, self.norm.bias, 1e-5)

    def _scaled(self, centred: Tensor, spread: Tensor) -> Tensor:
        return centred * torch.rsqrt(spread + 1e-5) * self.norm.weight + self.norm.bias

    def by_hand(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return self._scaled(centred, centred.pow(2).mean(-1, keepdim=True))

    def by_moments(self, x: Tensor) -> Tensor:
        wide = x if x.dtype is torch.float64 else x.float()
        mean = wide.mean(-1, keepdim=True)
        spread = (wide - mean).square().sum(-1, keepdim=True) / WIDTH
        normed = ((wide - mean) / torch.sqrt(spread + 1e-5)).to(x.dtype)
        return normed * self.norm.weight + self.norm.bias

    def by_token(self, x: Tensor) -> Tensor:
        return torch.cat([self.norm(part) for part in torch.split(x, 1, 1)], 1)

    def with_var(self, x: Tensor) -> Tensor:
        spread, mean = torch.var_mean(x, -1, unbiased=False, keepdim=True)
        return self._scaled(x - mean, spread)

    def affine_apart(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.norm.bias, F.layer_norm(x, (WIDTH,)), self.norm.weight)

    def other_eps(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,), self.norm.weight, self.norm.bias, 1e-2)

    def no_weight(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,), None, self.norm.bias, 1e-5)

    def unbiased(self, x: Tensor) -> Tensor:
        return self._scaled(x - x.mean(-1, keepdim=True), x.var(-1, keepdim=True))

    def not_centred(self, x: Tensor) -> Tensor:
        return self._scaled(x, x.pow(2).mean(-1, keepdim=True))

    def over_tokens(self, x: Tensor) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        return self._scaled(centred, centred.pow(2).mean(1, keepdim=True))

    def left_out(self, x: Tensor) -> Tensor:
        return x * self.norm.weight + self.norm.bias


class RootNorm(Piece):
    """A root mean square norm."""

    ways = ("plain", "by_hand", "weight_first", "divided", "by_length", "in_float32", "in_place")
    faults = ("other_eps", "of_sum", "weight_plus_one", "half_only")

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def plain(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (WIDTH,), self.weight, 1e-6)

    def by_hand(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

    def weight_first(self, x: Tensor) -> Tensor:
        return (self.weight * x) * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    def divided(self, x: Tensor) -> Tensor:
        return self.weight * (x / torch.sqrt(x.square().mean(-1, True) + 1e-6))

    def by_length(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / torch.sqrt(length * length / WIDTH + 1e-6) * self.weight

    def in_float32(self, x: Tensor) -> Tensor:
        wide = x if x.dtype is torch.float64 else x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)

    def in_place(self, x: Tensor) -> Tensor:
        scale = x.pow(2).mean(-1, keepdim=True).add_(1e-6).rsqrt_()
        return x * scale * self.weight

    def other_eps(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (WIDTH,), self.weight, 1e-2)

    def of_sum(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6) * self.weight

    def weight_plus_one(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (WIDTH,), self.weight + 1, 1e-6)

    def half_only(self, x: Tensor) -> Tensor:
        some = x[..., :HALF]
        return x * torch.rsqrt(some.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Gelu(Piece):
    """An activation."""

    ways = ("plain", "by_hand", "in_parts", "by_erfc")
    faults = ("other", "relu", "nothing")

    def plain(self, x: Tensor) -> Tensor:
        return F.gelu(x)

    def by_hand(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2.0)))

    def in_parts(self, x: Tensor) -> Tensor:
        return torch.cat([F.gelu(part) for part in x.chunk(2, -1)], -1)

    def by_erfc(self, x: Tensor) -> Tensor:
        return x * torch.erfc(-x * math.sqrt(0.5)) * 0.5

    def other(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def relu(self, x: Tensor) -> Tensor:
        return F.relu(x)

    def nothing(self, x: Tensor) -> Tensor:
        return x * 1.0


class Gated(Piece):
    """A gated layer, as in Llama."""

    ways = ("plain", "by_sigmoid", "merged", "in_place", "halves", "packed")
    faults = ("other_gate", "no_silu", "no_gate", "gelu")

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH, bias=False)

    def choose(self, way: str) -> None:
        """One way has both weights in one layer."""
        super().choose(way)
        if way == "packed":
            both = nn.Linear(WIDTH, 2 * WIDTH)
            with torch.no_grad():
                both.weight.copy_(torch.cat([self.gate.weight, self.up.weight]))
                both.bias.copy_(torch.cat([self.gate.bias, self.up.bias]))
            self.both = both
            del self.gate, self.up

    def plain(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]

    def by_sigmoid(self, x: Tensor) -> Tensor:
        up, gate = self.up(x), self.gate(x)
        return self.down(up * (gate * torch.sigmoid(gate)))  # type: ignore[no-any-return]

    def merged(self, x: Tensor) -> Tensor:
        weight = torch.cat([self.gate.weight, self.up.weight])
        gate, up = F.linear(x, weight).chunk(2, -1)
        return self.down(F.silu(gate + self.gate.bias) * (up + self.up.bias))  # type: ignore[no-any-return]

    def in_place(self, x: Tensor) -> Tensor:
        y = F.silu(self.gate(x))
        y *= self.up(x)
        return self.down(y)  # type: ignore[no-any-return]

    def halves(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for part in (slice(0, HALF), slice(HALF, WIDTH)):
            gate = F.linear(x, self.gate.weight[part], self.gate.bias[part])
            y = F.silu(gate) * F.linear(x, self.up.weight[part], self.up.bias[part])
            total = total + F.linear(y, self.down.weight[:, part])
        return total

    def packed(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).split(WIDTH, -1)
        return self.down(F.silu(gate) * up)  # type: ignore[no-any-return]

    def other_gate(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x) * F.silu(self.up(x)))  # type: ignore[no-any-return]

    def no_silu(self, x: Tensor) -> Tensor:
        return self.down(self.gate(x) * self.up(x))  # type: ignore[no-any-return]

    def no_gate(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))  # type: ignore[no-any-return]

    def gelu(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Residual(Piece):
    """A sum of two values."""

    ways = ("plain", "turned", "in_place", "named", "stacked", "lerped", "written")
    faults = ("missing", "minus", "twice", "other_only", "weighted")
    num_inputs = 2

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def turned(self, x: Tensor, y: Tensor) -> Tensor:
        return y + x

    def in_place(self, x: Tensor, y: Tensor) -> Tensor:
        total = x.clone()
        total += y
        return total

    def named(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.add(x, y, alpha=1)

    def stacked(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([x, y]).sum(0)

    def lerped(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.lerp(x, y, 0.5) * 2

    def written(self, x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for place in range(x.shape[1]):
            total[:, place] = x[:, place] + y[:, place]
        return total

    def missing(self, x: Tensor, y: Tensor) -> Tensor:
        return y * 1.0

    def minus(self, x: Tensor, y: Tensor) -> Tensor:
        return x - y

    def twice(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y + y

    def other_only(self, x: Tensor, y: Tensor) -> Tensor:
        return x * 1.0

    def weighted(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.add(x, y, alpha=0.9)


class Positions(Piece):
    """A table of positions is added."""

    ways = ("plain", "sliced", "selected", "embedded", "by_product", "gathered")
    faults = ("one_late", "from_zero", "reversed_order", "missing")

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(LONGEST + 1, WIDTH) * 0.5)

    def _at(self, x: Tensor, shift: int = 1) -> Tensor:
        return torch.arange(x.shape[1]) + shift

    def plain(self, x: Tensor) -> Tensor:
        return x + self.table[self._at(x)]

    def sliced(self, x: Tensor) -> Tensor:
        return x + self.table[1 : 1 + x.shape[1]]

    def selected(self, x: Tensor) -> Tensor:
        return self.table.index_select(0, self._at(x)) + x

    def embedded(self, x: Tensor) -> Tensor:
        return x + F.embedding(self._at(x), self.table).unsqueeze(0)

    def by_product(self, x: Tensor) -> Tensor:
        return x + F.one_hot(self._at(x), LONGEST + 1).to(x.dtype) @ self.table

    def gathered(self, x: Tensor) -> Tensor:
        at = self._at(x).unsqueeze(-1).expand(-1, WIDTH)
        return x + self.table.gather(0, at)

    def one_late(self, x: Tensor) -> Tensor:
        return x + self.table[self._at(x, 0)]

    def from_zero(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]]

    def reversed_order(self, x: Tensor) -> Tensor:
        return x + self.table[self._at(x).flip(0)]

    def missing(self, x: Tensor) -> Tensor:
        return x + 0.0


class Pooled(Piece):
    """The mean over tokens is taken off."""

    ways = ("plain", "by_sum", "by_product", "einsum", "by_cumsum", "in_float32")
    faults = ("over_width", "not_divided", "one_less", "largest", "over_all")

    def plain(self, x: Tensor) -> Tensor:
        return x - x.mean(1, keepdim=True)

    def by_sum(self, x: Tensor) -> Tensor:
        return x - x.sum(1, keepdim=True) / x.shape[1]

    def by_product(self, x: Tensor) -> Tensor:
        ones = torch.ones(1, x.shape[1], dtype=x.dtype)  # which no dtype rounds
        return x - ones @ x / x.shape[1]

    def einsum(self, x: Tensor) -> Tensor:
        ones = torch.ones(x.shape[1], dtype=x.dtype)
        return x - torch.einsum("btw,t->bw", x, ones).unsqueeze(1) / x.shape[1]

    def by_cumsum(self, x: Tensor) -> Tensor:
        return x - x.cumsum(1)[:, -1:] / x.shape[1]

    def in_float32(self, x: Tensor) -> Tensor:
        wide = x if x.dtype is torch.float64 else x.float()
        return x - wide.mean(1, keepdim=True).to(x.dtype)

    def over_width(self, x: Tensor) -> Tensor:
        return x - x.mean(2, keepdim=True)

    def not_divided(self, x: Tensor) -> Tensor:
        return x - x.sum(1, keepdim=True)

    def one_less(self, x: Tensor) -> Tensor:
        return x - x[:, :-1].mean(1, keepdim=True)

    def largest(self, x: Tensor) -> Tensor:
        return x - x.amax(1, keepdim=True)

    def over_all(self, x: Tensor) -> Tensor:
        return x - x.mean((0, 1), keepdim=True)


class Recast(Piece):
    """A product; some ways go through a shorter dtype, which is rounding and nothing else."""

    ways = ("plain", "through_short", "weight_short", "in_place", "divided")
    faults = ("other_factor", "squared", "shifted")

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter((torch.rand(WIDTH) + 0.5).bfloat16().float())

    def plain(self, x: Tensor) -> Tensor:
        return x * self.factor

    def through_short(self, x: Tensor) -> Tensor:
        return x.to(self.short).to(x.dtype) * self.factor

    def weight_short(self, x: Tensor) -> Tensor:
        return (x * self.factor.to(self.short)).to(x.dtype)

    def in_place(self, x: Tensor) -> Tensor:
        return x.clone().mul_(self.factor)

    def divided(self, x: Tensor) -> Tensor:
        return x / self.factor.reciprocal()

    def other_factor(self, x: Tensor) -> Tensor:
        return x * (self.factor + 0.02)

    def squared(self, x: Tensor) -> Tensor:
        return x * self.factor * self.factor

    def shifted(self, x: Tensor) -> Tensor:
        return x * self.factor.roll(1)


class Masked(Piece):
    """Some tokens are set to a number."""

    ways = ("plain", "where", "multiplied", "in_place", "by_index", "filled")
    faults = ("inverted", "one_late", "other_number", "left_out")

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Tensor
        self.register_buffer("hidden", torch.tensor([False, True] + [False, False, True] * 4))

    def _mask(self, x: Tensor) -> Tensor:
        return self.hidden[: x.shape[1], None].expand(-1, WIDTH)

    def plain(self, x: Tensor) -> Tensor:
        return x.masked_fill(self._mask(x), 0.25)

    def where(self, x: Tensor) -> Tensor:
        return torch.where(self._mask(x), 0.25, x)

    def multiplied(self, x: Tensor) -> Tensor:
        mask = self._mask(x).to(x.dtype)
        return x * (1 - mask) + 0.25 * mask

    def in_place(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[:, self.hidden[: x.shape[1]]] = 0.25
        return y

    def by_index(self, x: Tensor) -> Tensor:
        places = self.hidden[: x.shape[1]].nonzero().flatten()
        return x.index_fill(1, places, 0.25)

    def filled(self, x: Tensor) -> Tensor:
        y = x.clone()
        for place in range(x.shape[1]):
            if place % 3 == 1:
                y[:, place].fill_(0.25)
        return y

    def inverted(self, x: Tensor) -> Tensor:
        return x.masked_fill(~self._mask(x), 0.25)

    def one_late(self, x: Tensor) -> Tensor:
        return x.masked_fill(self._mask(x).roll(1, 0), 0.25)

    def other_number(self, x: Tensor) -> Tensor:
        return x.masked_fill(self._mask(x), 0.3)

    def left_out(self, x: Tensor) -> Tensor:
        return x * 1.0
