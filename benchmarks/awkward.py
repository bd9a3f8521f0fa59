"""Programs with awkward Python: unpacking, writes in place, early returns, formulas, patterns."""

from __future__ import annotations

from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS = 32, 4


class Unpacking(nn.Module):
    """Tuples, chunks, splits, unbinds and comprehensions over heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        heads = [
            F.softmax(a @ b.mT / 3.0, -1) @ c for a, b, c in zip(q[0], k[0], v[0], strict=True)
        ]
        mixed = torch.stack(heads).transpose(0, 1).flatten(1)[None]
        first, second = self.gate(x).chunk(2, -1)
        left, right = torch.split(first * F.silu(second), WIDTH // 2, -1)
        _, *rest = mixed.unbind(1)
        out: Tensor = self.out(torch.cat([right, left], -1) + mixed) + rest[0] + rest[-1]
        return out


class InPlace(nn.Module):
    """In-place ops, writes into slices, views of views, and a buffer that changes."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("steps", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x).clone()
        x += 1.0
        x.mul_(0.5).clamp_(-2, 2)
        room = torch.empty_like(x)
        room[:, ::2] = x[:, ::2].sin()
        room[:, 1::2] = x[:, 1::2].cos()
        seen = room.view(-1, 2, HEADS, WIDTH // HEADS)[:, 0].T.T[1:]
        self.steps.add_(room.detach().mean((0, 1)))
        padded = x.new_zeros(x.shape[0], x.shape[1] + 1, WIDTH)
        padded[:, 1:] = room
        rows = padded.masked_fill_(padded > 1.5, 1.5)[:, 1:]
        return rows * self.steps + seen.mean()


class EarlyReturn(nn.Module):
    """Branches on shapes and numbers, a loop that breaks, a closure, a module called thrice."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.scale = 1.5

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        def step(state: Tensor) -> Tensor:
            if state.shape[1] == 1:
                return state
            return torch.tanh(self.cell(self.norm(state))) + state

        for turn in range(4):
            x = step(x)
            if turn >= 2:
                break
        if mask is None:
            return x * self.scale
        kept = x * mask[..., None]
        return kept.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


class OwnNorm(nn.Module):
    """Formulas in place of functions: RMS norm, attention, rotary halves, SwiGLU, in half types."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def rotate(self, x: Tensor) -> Tensor:
        one, other = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return torch.cat((-other, one), -1)

    def forward(self, x: Tensor) -> Tensor:
        normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        normed = self.weight * normed.to(x.dtype)
        shape = (*x.shape[:2], HEADS, -1)
        q, k, v = (f(normed).view(shape).transpose(1, 2) for f in (self.q, self.k, self.v))
        rates = torch.tensor([1.0, 0.1, 0.01, 0.001], device=x.device)
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * rates[None]
        cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
        q, k = q * cos + self.rotate(q) * sin, k * cos + self.rotate(k) * sin
        scores = q @ k.transpose(-2, -1) / (q.shape[-1] ** 0.5)
        scores = scores + torch.full_like(scores, float("-inf")).triu(1)
        mixed = (scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v).transpose(1, 2)
        x = x + mixed.contiguous().view(x.shape)
        gate = self.gate(x)
        out: Tensor = x + self.down(gate * gate.sigmoid() * self.up(x)).type_as(x)
        return out


class Recurrent(nn.Module):
    """A cell in a loop, a list of states, gates by unpacking, and a mask by comparison."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        state = memory = x.new_zeros(x.shape[0], WIDTH)
        states = []
        for moment in x.unbind(1):
            i, f, g, o = (self.inner(moment) + self.outer(state)).split(WIDTH, dim=-1)
            memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(memory)
            states.append(state)
        out = torch.stack(states, 1)
        return torch.where(out > 0, out, 0.1 * out).mT.contiguous().mT


class Rearranged(nn.Module):
    """Attention over patches whose axes are laid out by patterns of einops."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        einops = import_module("einops")
        q, k, v = einops.rearrange(
            self.qkv(x), "b s (three h d) -> three b h s d", three=3, h=HEADS
        )
        scores = torch.einsum("b h i d, b h j d -> b h i j", q, k) * q.shape[-1] ** -0.5
        mixed = einops.rearrange(scores.softmax(-1) @ v, "b h s d -> b s (h d)")
        halves = einops.reduce(x, "b (s two) d -> b s d", "mean", two=2)
        again = einops.repeat(halves, "b s d -> b (s two) d", two=2)
        packed, shapes = einops.pack([mixed, again], "b * d")
        first, second = einops.unpack(self.out(packed), shapes, "b * d")
        out: Tensor = first * second.tanh()
        return out
