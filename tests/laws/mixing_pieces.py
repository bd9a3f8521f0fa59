"""More of what programs at random are made of: what mixes tokens, chooses, remembers and writes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.laws.pieces import HALF, HEADS, LONGEST, WIDTH, Piece

SIZE = WIDTH // HEADS
SCALE = SIZE**-0.5
BATCH = 2


def heads(x: Tensor) -> Tensor:
    return x.view(x.shape[0], x.shape[1], HEADS, SIZE).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], WIDTH)


def later(x: Tensor, first: int = 1) -> Tensor:
    """Which keys no query may see, of (tokens, tokens)."""
    length = x.shape[1]
    return torch.ones(length, length, dtype=torch.bool).triu(first)


class Attention(Piece):
    """Causal attention with heads."""

    ways = (
        "plain", "by_hand", "merged", "scaled_query", "scaled_both", "bool_mask", "float_mask",
        "by_head", "softmax_by_hand", "einsum", "batched", "packed", "in_float32", "by_row",
    )  # fmt: skip
    faults = (
        "no_mask", "swapped", "other_scale", "one_late", "heads_not_turned", "other_dim",
        "other_head", "one_early", "no_output",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            for layer in (self.q, self.k):
                layer.weight.mul_(2.0)

    def choose(self, way: str) -> None:
        """One way has three weights in one layer."""
        super().choose(way)
        if way == "packed":
            layers, packed = (self.q, self.k, self.v), nn.Linear(WIDTH, 3 * WIDTH)
            with torch.no_grad():
                packed.weight.copy_(torch.cat([layer.weight for layer in layers]))
                packed.bias.copy_(torch.cat([layer.bias for layer in layers]))
            self.qkv = packed
            del self.q, self.k, self.v

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return heads(self.q(x)), heads(self.k(x)), heads(self.v(x))

    def _out(self, mixed: Tensor) -> Tensor:
        return self.out(joined(mixed))  # type: ignore[no-any-return]

    def plain(self, x: Tensor) -> Tensor:
        return self._out(F.scaled_dot_product_attention(*self._parts(x), is_causal=True))

    def by_hand(self, x: Tensor) -> Tensor:
        q, k, v = self._parts(x)
        scores = (q @ k.transpose(-1, -2)) * SCALE
        return self._out(scores.masked_fill(later(x), -torch.inf).softmax(-1) @ v)

    def merged(self, x: Tensor) -> Tensor:
        layers = self.q, self.k, self.v
        weight = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([layer.bias for layer in layers])
        q, k, v = map(heads, F.linear(x, weight, bias).chunk(3, -1))
        return self._out(F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def scaled_query(self, x: Tensor) -> Tensor:
        q, k, v = self._parts(x)
        mixed = F.scaled_dot_product_attention(q * SCALE, k, v, is_causal=True, scale=1.0)
        return self._out(mixed)

    def scaled_both(self, x: Tensor) -> Tensor:
        q, k, v = self._parts(x)
        root = SCALE**0.5
        scores = torch.matmul(q * root, (k * root).mT)
        return self._out(torch.softmax(scores.masked_fill(later(x), -torch.inf), -1) @ v)

    def bool_mask(self, x: Tensor) -> Tensor:
        q, k, v = self._parts(x)
        return self._out(F.scaled_dot_product_attention(q, k, v, attn_mask=~later(x)))

    def float_mask(self, x: Tensor) -> Tensor:
        q, k, v = self._parts(x)
        mask = torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype)
        mask = mask.masked_fill(later(x), -torch.inf)
        return self._out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))

    def by_head(self, x: Tensor) -> Tensor:
        mixed = [
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
            for q, k, v in zip(*(part.unbind(1) for part in self._parts(x)), strict=True)
        ]
        return self.out(torch.cat(mixed, -1))  # type: ignore[no-any-return]

    def softmax_by_hand(self, x: Tensor) -> Tensor:
        q, k, v = self._parts(x)
        scores = q @ k.transpose(-1, -2) / math.sqrt(SIZE)
        scores = scores.masked_fill(later(x), -torch.inf)
        raised = (scores - scores.amax(-1, keepdim=True)).exp()
        return self._out((raised @ v) / raised.sum(-1, keepdim=True))

    def einsum(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).view(*x.shape[:2], HEADS, SIZE) for layer in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * SCALE
        shares = scores.masked_fill_(later(x), -torch.inf).softmax(-1)
        return self.out(torch.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape))  # type: ignore[no-any-return]

    def batched(self, x: Tensor) -> Tensor:
        q, k, v = (part.reshape(-1, x.shape[1], SIZE) for part in self._parts(x))
        mask = torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype)
        mask = mask.masked_fill(later(x), -torch.inf)
        scores = torch.baddbmm(mask.expand(len(q), -1, -1), q, k.transpose(1, 2), alpha=SCALE)
        mixed = torch.bmm(scores.softmax(-1), v)
        return self._out(mixed.view(-1, HEADS, x.shape[1], SIZE))

    def packed(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(x).split(WIDTH, -1))
        return self._out(F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def in_float32(self, x: Tensor) -> Tensor:
        q, k, v = self._parts(x)
        scores = (q @ k.transpose(2, 3)) * SCALE
        scores = scores + torch.zeros_like(scores).masked_fill(later(x), -torch.inf)
        wide = torch.float64 if x.dtype is torch.float64 else torch.float32
        return self._out(F.softmax(scores, -1, dtype=wide).to(x.dtype) @ v)

    def by_row(self, x: Tensor) -> Tensor:
        """A token after the other, with the keys that were made before."""
        q, k, v = self._parts(x)
        mixed = [
            F.scaled_dot_product_attention(
                q[:, :, at : at + 1], k[:, :, : at + 1], v[:, :, : at + 1]
            )
            for at in range(x.shape[1])
        ]
        return self._out(torch.cat(mixed, 2))

    def no_mask(self, x: Tensor) -> Tensor:
        return self._out(F.scaled_dot_product_attention(*self._parts(x)))

    def swapped(self, x: Tensor) -> Tensor:
        q, k, v = self._parts(x)
        return self._out(F.scaled_dot_product_attention(q, v, k, is_causal=True))

    def other_scale(self, x: Tensor) -> Tensor:
        return self._out(F.scaled_dot_product_attention(*self._parts(x), is_causal=True, scale=0.4))

    def one_late(self, x: Tensor) -> Tensor:
        q, k, v = self._parts(x)
        return self._out(F.scaled_dot_product_attention(q, k, v, attn_mask=~later(x, 2)))

    def one_early(self, x: Tensor) -> Tensor:
        q, k, v = self._parts(x)
        seen = ~later(x, 0)
        seen[0, 0] = True
        return self._out(F.scaled_dot_product_attention(q, k, v, attn_mask=seen))

    def heads_not_turned(self, x: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(*self._parts(x), is_causal=True)
        return self.out(mixed.reshape(x.shape))  # type: ignore[no-any-return]

    def other_dim(self, x: Tensor) -> Tensor:
        q, k, v = self._parts(x)
        scores = ((q @ k.transpose(-1, -2)) * SCALE).masked_fill(later(x), -torch.inf)
        return self._out(scores.softmax(-2) @ v)

    def other_head(self, x: Tensor) -> Tensor:
        q, k, v = self._parts(x)
        return self._out(F.scaled_dot_product_attention(q, k, v.flip(1), is_causal=True))

    def no_output(self, x: Tensor) -> Tensor:
        return joined(F.scaled_dot_product_attention(*self._parts(x), is_causal=True))


class Experts(Piece):
    """A mixture of experts, two of four for each token."""

    ways = ("plain", "by_rows", "dense", "sorted_shares", "summed", "indexed")
    faults = ("not_normalised", "one_only", "least", "other_share", "expert_missing")
    is_traced = False

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        with torch.no_grad():
            self.gate.weight.mul_(3.0)

    def _shares(self, x: Tensor, is_largest: bool = True) -> tuple[Tensor, Tensor]:
        shares, chosen = self.gate(x).softmax(-1).topk(2, -1, largest=is_largest)
        return shares / shares.sum(-1, keepdim=True), chosen

    def _mixed(self, x: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (shares * (chosen == number)).sum(-1, keepdim=True)
            mixed = mixed + share * expert(x)
        return mixed

    def plain(self, x: Tensor) -> Tensor:
        return self._mixed(x, *self._shares(x))

    def by_rows(self, x: Tensor) -> Tensor:
        shares, chosen = self._shares(x)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).any(-1)
            share = (shares * (chosen == number)).sum(-1, keepdim=True)[rows]
            mixed[rows] += share * expert(x[rows])
        return mixed

    def dense(self, x: Tensor) -> Tensor:
        shares, chosen = self._shares(x)
        weights = torch.zeros(*x.shape[:2], 4, dtype=x.dtype).scatter(-1, chosen, shares)
        every = torch.stack([expert(x) for expert in self.experts], -2)
        return (weights.unsqueeze(-1) * every).sum(-2)

    def sorted_shares(self, x: Tensor) -> Tensor:
        shares, chosen = self.gate(x).softmax(-1).sort(-1, descending=True)
        shares, chosen = shares[..., :2], chosen[..., :2]
        return self._mixed(x, shares / shares.sum(-1, keepdim=True), chosen)

    def summed(self, x: Tensor) -> Tensor:
        logits, chosen = self.gate(x).topk(2, -1)
        return self._mixed(x, logits.softmax(-1), chosen)

    def indexed(self, x: Tensor) -> Tensor:
        shares, chosen = self._shares(x)
        flat, mixed = x.reshape(-1, WIDTH), torch.zeros(x.shape[0] * x.shape[1], WIDTH)
        mixed, shares, chosen = mixed.to(x.dtype), shares.view(-1, 2), chosen.view(-1, 2)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            mixed.index_add_(0, token, shares[token, place, None] * expert(flat[token]))
        return mixed.view(x.shape)

    def not_normalised(self, x: Tensor) -> Tensor:
        return self._mixed(x, *self.gate(x).softmax(-1).topk(2, -1))

    def one_only(self, x: Tensor) -> Tensor:
        shares, chosen = self._shares(x)
        return self._mixed(x, shares[..., :1], chosen[..., :1])

    def least(self, x: Tensor) -> Tensor:
        return self._mixed(x, *self._shares(x, is_largest=False))

    def other_share(self, x: Tensor) -> Tensor:
        shares, chosen = self._shares(x)
        return self._mixed(x, shares.flip(-1), chosen)

    def expert_missing(self, x: Tensor) -> Tensor:
        shares, chosen = self._shares(x)
        return self._mixed(x, shares * (chosen != 2), chosen)


class Chosen(Piece):
    """The word that a head scores highest is looked up and added."""

    ways = ("plain", "by_max", "by_topk", "by_sort", "by_product")
    faults = ("least", "second", "of_tokens", "next_word")

    def __init__(self) -> None:
        super().__init__()
        self.head, self.words = nn.Linear(WIDTH, 10, bias=False), nn.Embedding(10, WIDTH)

    def plain(self, x: Tensor) -> Tensor:
        return x + self.words(self.head(x).argmax(-1))  # type: ignore[no-any-return]

    def by_max(self, x: Tensor) -> Tensor:
        return x + self.words.weight[self.head(x).max(-1).indices]

    def by_topk(self, x: Tensor) -> Tensor:
        return x + F.embedding(self.head(x).topk(1).indices[..., 0], self.words.weight)

    def by_sort(self, x: Tensor) -> Tensor:
        return self.words(self.head(x).sort(-1, descending=True)[1][..., 0]) + x  # type: ignore[no-any-return]

    def by_product(self, x: Tensor) -> Tensor:
        return x + F.one_hot(self.head(x).argmax(-1), 10).to(x.dtype) @ self.words.weight

    def least(self, x: Tensor) -> Tensor:
        return x + self.words(self.head(x).argmin(-1))  # type: ignore[no-any-return]

    def second(self, x: Tensor) -> Tensor:
        return x + self.words(self.head(x).topk(2).indices[..., 1])  # type: ignore[no-any-return]

    def of_tokens(self, x: Tensor) -> Tensor:
        best = self.head(x).argmax(1)[:, :1].expand(-1, x.shape[1])
        return x + self.words(best)  # type: ignore[no-any-return]

    def next_word(self, x: Tensor) -> Tensor:
        return x + self.words((self.head(x).argmax(-1) + 1) % 10)  # type: ignore[no-any-return]


class Cached(Piece):
    """What was seen so far is kept in a buffer, and its mean is added."""

    ways = ("plain", "narrowed", "copied", "scattered", "through_views", "by_token")
    faults = (
        "not_written", "one_late", "reads_first", "stale_step", "spoilt", "written_after",
    )  # fmt: skip
    is_by_row = False

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(WIDTH, WIDTH)
        self.cache: Tensor
        self.register_buffer("cache", torch.zeros(BATCH, LONGEST + 1, WIDTH))
        self.num_seen = 0

    def _read(self, x: Tensor) -> Tensor:
        self.num_seen += x.shape[1]
        return x + self.cache[:, : self.num_seen].mean(1, keepdim=True)

    def plain(self, x: Tensor) -> Tensor:
        self.cache[:, self.num_seen : self.num_seen + x.shape[1]] = self.key(x).detach()
        return self._read(x)

    def narrowed(self, x: Tensor) -> Tensor:
        self.cache.narrow(1, self.num_seen, x.shape[1]).copy_(self.key(x).detach())
        return self._read(x)

    def copied(self, x: Tensor) -> Tensor:
        at = torch.arange(self.num_seen, self.num_seen + x.shape[1])
        self.cache.index_copy_(1, at, self.key(x).detach())
        return self._read(x)

    def scattered(self, x: Tensor) -> Tensor:
        at = torch.arange(self.num_seen, self.num_seen + x.shape[1])[None, :, None]
        self.cache.scatter_(1, at.expand(BATCH, -1, WIDTH), self.key(x).detach())
        return self._read(x)

    def through_views(self, x: Tensor) -> Tensor:
        turned = self.cache.transpose(0, 1)
        turned[self.num_seen : self.num_seen + x.shape[1]] = self.key(x).detach().transpose(0, 1)
        return self._read(x)

    def by_token(self, x: Tensor) -> Tensor:
        key = self.key(x).detach()
        for place in range(x.shape[1]):
            self.cache[:, self.num_seen + place].copy_(key[:, place])
        return self._read(x)

    def not_written(self, x: Tensor) -> Tensor:
        self.key(x)
        return self._read(x)

    def one_late(self, x: Tensor) -> Tensor:
        first = self.num_seen + 1
        self.cache[:, first : first + x.shape[1]] = self.key(x).detach()
        return self._read(x)

    def reads_first(self, x: Tensor) -> Tensor:
        first, y = self.num_seen, self._read(x)
        self.cache[:, first : first + x.shape[1]] = self.key(x).detach()
        return y

    def stale_step(self, x: Tensor) -> Tensor:
        key = self.key(x).detach()
        self.cache[:, self.num_seen : self.num_seen + x.shape[1] - 1] = key[:, :-1]
        return self._read(x)

    def spoilt(self, x: Tensor) -> Tensor:
        """A place that nobody reads before the next step, if there is one."""
        y = self.plain(x)
        self.cache[:, -1] = x[:, 0].detach()
        return y

    def written_after(self, x: Tensor) -> Tensor:
        y = self.plain(x)
        self.cache[:, self.num_seen - 1].mul_(0.5)
        return y


class Running(Piece):
    """A mean over all that was seen is kept in a buffer, and not read in the same step."""

    ways = ("plain", "lerped", "assigned", "one_line", "through_data")
    faults = ("other_momentum", "not_written", "written_twice", "of_batch_first")
    is_by_row = False

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.randn(WIDTH))

    def _seen(self, x: Tensor) -> Tensor:
        return x.detach().mean((0, 1))

    def plain(self, x: Tensor) -> Tensor:
        y = x - self.mean * 0.5
        self.mean.mul_(0.9).add_(self._seen(x) * 0.1)
        return y

    def lerped(self, x: Tensor) -> Tensor:
        y = x - self.mean * 0.5
        self.mean.lerp_(self._seen(x), 0.1)
        return y

    def assigned(self, x: Tensor) -> Tensor:
        y = x - self.mean * 0.5
        self.mean = self.mean * 0.9 + self._seen(x) * 0.1
        return y

    def one_line(self, x: Tensor) -> Tensor:
        y = torch.sub(x, self.mean, alpha=0.5)
        self.mean.copy_(0.9 * self.mean + 0.1 * self._seen(x))
        return y

    def through_data(self, x: Tensor) -> Tensor:
        y = x - self.mean / 2
        self.mean.data.mul_(0.9)
        self.mean.data.add_(self._seen(x), alpha=0.1)
        return y

    def other_momentum(self, x: Tensor) -> Tensor:
        y = x - self.mean * 0.5
        self.mean.mul_(0.99).add_(self._seen(x) * 0.01)
        return y

    def not_written(self, x: Tensor) -> Tensor:
        return x - self.mean * 0.5

    def written_twice(self, x: Tensor) -> Tensor:
        y = self.plain(x)
        self.mean.mul_(0.9).add_(self._seen(x) * 0.1)
        return y

    def of_batch_first(self, x: Tensor) -> Tensor:
        y = x - self.mean * 0.5
        self.mean.mul_(0.9).add_(x.detach()[0].mean(0) * 0.1)
        return y


class Turned(Piece):
    """Channels are mixed between tokens by a table."""

    ways = ("plain", "einsum", "from_left", "by_linear", "summed")
    faults = ("other_turn", "not_causal", "no_table")

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(LONGEST, LONGEST) * 0.4)

    def _mix(self, x: Tensor) -> Tensor:
        return self.table[: x.shape[1], : x.shape[1]].tril()

    def plain(self, x: Tensor) -> Tensor:
        return self._mix(x) @ x

    def einsum(self, x: Tensor) -> Tensor:
        return torch.einsum("ts,bsw->btw", self._mix(x), x)

    def from_left(self, x: Tensor) -> Tensor:
        return (x.transpose(1, 2) @ self._mix(x).t()).transpose(1, 2)

    def by_linear(self, x: Tensor) -> Tensor:
        return F.linear(x.permute(0, 2, 1), self._mix(x)).permute(0, 2, 1).contiguous()

    def summed(self, x: Tensor) -> Tensor:
        return (self._mix(x)[None, :, :, None] * x[:, None]).sum(2)

    def other_turn(self, x: Tensor) -> Tensor:
        return self._mix(x).t() @ x

    def not_causal(self, x: Tensor) -> Tensor:
        return self.table[: x.shape[1], : x.shape[1]] @ x

    def no_table(self, x: Tensor) -> Tensor:
        return torch.ones_like(self._mix(x)).tril() @ x


class Rotary(Piece):
    """Halves of the width are turned by an angle of the position."""

    ways = ("plain", "by_parts", "written", "complexly", "tabled")
    faults = ("other_sign", "one_late", "interleaved", "cos_only")

    def _angles(self, x: Tensor, first: int = 0) -> Tensor:
        rates = 10.0 ** (-torch.arange(HALF, dtype=torch.float64) / HALF)
        angles = (torch.arange(x.shape[1], dtype=torch.float64) + first)[:, None] * rates
        return angles.to(torch.float64)

    def _tables(self, x: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        angles = self._angles(x, first)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def plain(self, x: Tensor) -> Tensor:
        cos, sin = (torch.cat([each, each], -1) for each in self._tables(x))
        return x * cos + torch.cat([-x[..., HALF:], x[..., :HALF]], -1) * sin

    def by_parts(self, x: Tensor) -> Tensor:
        (cos, sin), (left, right) = self._tables(x), x.chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    def written(self, x: Tensor) -> Tensor:
        (cos, sin), y = self._tables(x), torch.empty_like(x)
        y[..., :HALF] = x[..., :HALF] * cos - x[..., HALF:] * sin
        y[..., HALF:] = x[..., HALF:] * cos + x[..., :HALF] * sin
        return y

    def complexly(self, x: Tensor) -> Tensor:
        cos, sin = self._tables(x)
        wide = x if x.dtype is torch.float64 else x.float()
        turned = torch.complex(wide[..., :HALF], wide[..., HALF:]) * torch.complex(
            cos.to(wide.dtype), sin.to(wide.dtype)
        )
        return torch.cat([turned.real, turned.imag], -1).to(x.dtype)

    def tabled(self, x: Tensor) -> Tensor:
        cos, sin = self._tables(x)
        pairs = torch.stack([x[..., :HALF], x[..., HALF:]], -1)
        turns = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2)
        return (pairs.unsqueeze(-2) @ turns).squeeze(-2).transpose(-1, -2).reshape(x.shape)

    def other_sign(self, x: Tensor) -> Tensor:
        cos, sin = (torch.cat([each, each], -1) for each in self._tables(x))
        return x * cos + torch.cat([x[..., HALF:], -x[..., :HALF]], -1) * sin

    def one_late(self, x: Tensor) -> Tensor:
        cos, sin = (torch.cat([each, each], -1) for each in self._tables(x, 1))
        return x * cos + torch.cat([-x[..., HALF:], x[..., :HALF]], -1) * sin

    def interleaved(self, x: Tensor) -> Tensor:
        cos, sin = (each.repeat_interleave(2, -1) for each in self._tables(x))
        y = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        return x * cos + y * sin

    def cos_only(self, x: Tensor) -> Tensor:
        cos, _ = (torch.cat([each, each], -1) for each in self._tables(x))
        return x * cos


class Shuffled(Piece):
    """Tokens in another order, by an index."""

    ways = ("plain", "selected", "gathered", "scattered", "by_product")
    faults = ("back", "shifted", "channels_too")

    def _order(self, x: Tensor) -> Tensor:
        """Not its own inverse, for three tokens and more."""
        return torch.arange(x.shape[1]).roll(1)

    def plain(self, x: Tensor) -> Tensor:
        return x[:, self._order(x)]

    def selected(self, x: Tensor) -> Tensor:
        return x.index_select(1, self._order(x))

    def gathered(self, x: Tensor) -> Tensor:
        return x.gather(1, self._order(x)[None, :, None].expand_as(x))

    def scattered(self, x: Tensor) -> Tensor:
        back = self._order(x).argsort()[None, :, None].expand_as(x)
        return torch.zeros_like(x).scatter(1, back, x)

    def by_product(self, x: Tensor) -> Tensor:
        return F.one_hot(self._order(x), x.shape[1]).to(x.dtype) @ x

    def back(self, x: Tensor) -> Tensor:
        return x[:, self._order(x).argsort()]

    def shifted(self, x: Tensor) -> Tensor:
        return x[:, self._order(x).roll(1)]

    def channels_too(self, x: Tensor) -> Tensor:
        return x[:, self._order(x)].roll(1, -1)


class Convolved(Piece):
    """A causal convolution over tokens, by channel."""

    ways = ("plain", "by_shifts", "cropped", "unfolded")
    faults = ("not_causal", "flipped", "last_missing")

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH)

    def _run(self, padded: Tensor) -> Tensor:
        return self.conv(padded).transpose(1, 2)  # type: ignore[no-any-return]

    def plain(self, x: Tensor) -> Tensor:
        return self._run(F.pad(x.transpose(1, 2), (2, 0)))

    def by_shifts(self, x: Tensor) -> Tensor:
        padded, weight = F.pad(x, (0, 0, 2, 0)), self.conv.weight[:, 0]
        shifted = [padded[:, at : at + x.shape[1]] * weight[:, at] for at in range(3)]
        assert self.conv.bias is not None
        return shifted[0] + shifted[1] + shifted[2] + self.conv.bias

    def cropped(self, x: Tensor) -> Tensor:
        weight, bias = self.conv.weight, self.conv.bias
        wide = F.conv1d(x.transpose(1, 2), weight, bias, padding=2, groups=WIDTH)
        return wide[..., : x.shape[1]].transpose(1, 2)

    def unfolded(self, x: Tensor) -> Tensor:
        windows = F.pad(x, (0, 0, 2, 0)).unfold(1, 3, 1)
        assert self.conv.bias is not None
        return (windows * self.conv.weight[:, 0]).sum(-1) + self.conv.bias

    def not_causal(self, x: Tensor) -> Tensor:
        return self._run(F.pad(x.transpose(1, 2), (1, 1)))

    def flipped(self, x: Tensor) -> Tensor:
        weight = self.conv.weight.flip(-1)
        padded = F.pad(x.transpose(1, 2), (2, 0))
        return F.conv1d(padded, weight, self.conv.bias, groups=WIDTH).transpose(1, 2)

    def last_missing(self, x: Tensor) -> Tensor:
        padded = F.pad(x.transpose(1, 2)[..., :-1], (3, 0))
        return self._run(padded)


class Written(Piece):
    """A half of the width is doubled, through views or without."""

    ways = ("plain", "out_of_place", "narrowed", "turned", "indexed", "by_token")
    faults = ("left_out", "other_half", "to_a_copy", "twice")

    def plain(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[..., :HALF].mul_(2)
        return y

    def out_of_place(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., :HALF] * 2, x[..., HALF:]], -1)

    def narrowed(self, x: Tensor) -> Tensor:
        y = x.clone()
        part = y.narrow(-1, 0, HALF)
        part.add_(part)
        return y

    def turned(self, x: Tensor) -> Tensor:
        y = x.clone()
        y.permute(2, 0, 1)[:HALF] *= 2
        return y

    def indexed(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[..., torch.arange(HALF)] = x[..., :HALF] * 2
        return y

    def by_token(self, x: Tensor) -> Tensor:
        y = x.clone()
        for at in range(y.shape[1]):
            y[:, at, :HALF].mul_(2)
        return y

    def left_out(self, x: Tensor) -> Tensor:
        return x.clone()

    def other_half(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[..., HALF:].mul_(2)
        return y

    def to_a_copy(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[..., torch.arange(HALF)].mul_(2)
        return y

    def twice(self, x: Tensor) -> Tensor:
        y = self.plain(x)
        y[..., :1].mul_(2)
        return y


class Summed(Piece):
    """Sums up to each token."""

    ways = ("plain", "by_product", "by_loop", "flipped")
    faults = ("exclusive", "backwards", "of_channels")

    def plain(self, x: Tensor) -> Tensor:
        return x.cumsum(1)

    def by_product(self, x: Tensor) -> Tensor:
        return torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).tril() @ x

    def by_loop(self, x: Tensor) -> Tensor:
        total, found = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            total = total + token
            found.append(total)
        return torch.stack(found, 1)

    def flipped(self, x: Tensor) -> Tensor:
        return x.sum(1, keepdim=True) - x.flip(1).cumsum(1).flip(1) + x

    def exclusive(self, x: Tensor) -> Tensor:
        return x.cumsum(1) - x

    def backwards(self, x: Tensor) -> Tensor:
        return x.flip(1).cumsum(1).flip(1)

    def of_channels(self, x: Tensor) -> Tensor:
        return x.cumsum(2)
