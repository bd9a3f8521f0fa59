"""Small models written op by op: mixtures, scans, convolutions, recurrences, scatters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, LENGTH = 64, 16


class ConvNet(nn.Module):
    """Convolutions, batch norm in inference, pooling, a shortcut and a linear head."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, groups=2)
        self.head = nn.Linear(width * 4, 32)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.stem(image)))
        x = x + F.relu(self.norm2(self.conv1(x)))
        x = F.max_pool2d(F.silu(self.conv2(x)), 2)
        out: Tensor = self.head(F.adaptive_avg_pool2d(x, 2).flatten(1))
        return out


class Recurrent(nn.Module):
    """An LSTM as one op, and gates written out step by step on top of it."""

    def __init__(self, vocabulary: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=1, batch_first=True)
        self.gates, self.back = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.lstm(self.embed(tokens))
        state, states = torch.zeros_like(x[:, 0]), []
        for t in range(tokens.shape[1]):
            state = self.cell(x[:, t], state)
            states.append(state)
        out: Tensor = self.head(torch.stack(states, 1))
        return out

    def cell(self, x: Tensor, state: Tensor) -> Tensor:
        reset, update, new = self.gates(x).chunk(3, -1)
        reset_b, update_b, new_b = self.back(state).chunk(3, -1)
        reset, update = torch.sigmoid(reset + reset_b), torch.sigmoid(update + update_b)
        new = torch.tanh(new + reset * new_b)
        return (1 - update) * new + update * state


class Attention(nn.Module):
    """Causal attention written out, with a mask that is added."""

    def __init__(self, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        scores = torch.matmul(q, k.transpose(-1, -2)) * (q.shape[-1] ** -0.5)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        probs = torch.softmax(scores.masked_fill(later, float("-inf")), -1)
        mixed = torch.matmul(probs, v).transpose(1, 2).reshape(batch, length, -1)
        out: Tensor = self.out(mixed)
        return out


class Mixture(nn.Module):
    """Two experts of eight for each token; tokens are sorted by expert and summed back."""

    def __init__(self, num_experts: int = 8, hidden: int = 96) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, num_experts)
        self.up = nn.Parameter(torch.randn(num_experts, WIDTH, hidden) * WIDTH**-0.5)
        self.down = nn.Parameter(torch.randn(num_experts, hidden, WIDTH) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        probs = torch.softmax(self.router(flat).float(), -1)
        weights, chosen = torch.topk(probs, 2, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        experts, order = torch.sort(chosen.reshape(-1))
        token = order // 2
        inputs, pieces = flat[token], []
        counts = torch.bincount(experts, minlength=self.up.shape[0]).tolist()
        for expert, rows in enumerate(torch.split(inputs, counts)):
            pieces.append(F.gelu(rows @ self.up[expert]) @ self.down[expert])
        mixed = torch.cat(pieces) * weights.reshape(-1)[order].unsqueeze(-1)
        return torch.zeros_like(flat).index_add(0, token, mixed).view_as(x)


class MixtureDecoder(nn.Module):
    """Two blocks of attention and a mixture of experts."""

    def __init__(self, vocabulary: int = 64, num_layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * num_layers))
        self.attns = nn.ModuleList(Attention() for _ in range(num_layers))
        self.mixtures = nn.ModuleList(Mixture() for _ in range(num_layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for index, (attn, mixture) in enumerate(zip(self.attns, self.mixtures, strict=True)):
            x = x + attn(self.norms[2 * index](x))
            x = x + mixture(self.norms[2 * index + 1](x))
        out: Tensor = self.head(self.norm(x))
        return out


class Scan(nn.Module):
    """A selective state space, step by step: what Mamba computes, with fewer wrappings."""

    def __init__(self, states: int = 8) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 4, padding=3, groups=WIDTH)
        self.select = nn.Linear(WIDTH, WIDTH + 2 * states)
        self.decay = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(WIDTH, 1))
        self.skip = nn.Parameter(torch.ones(WIDTH))
        self.states = states

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        u, gate = self.up(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :length]).transpose(1, 2)
        delta, inward, outward = self.select(u).split([WIDTH, self.states, self.states], -1)
        delta = F.softplus(delta)
        kept = torch.exp(delta.unsqueeze(-1) * -torch.exp(self.decay))
        added = (delta * u).unsqueeze(-1) * inward.unsqueeze(2)
        state, seen = torch.zeros_like(added[:, 0]), []
        for t in range(length):
            state = kept[:, t] * state + added[:, t]
            seen.append(torch.matmul(state, outward[:, t].unsqueeze(-1)).squeeze(-1))
        mixed = torch.stack(seen, 1) + self.skip * u
        out: Tensor = x + self.down(mixed * F.silu(gate))
        return out


class StateSpace(nn.Module):
    """Two layers of `Scan`."""

    def __init__(self, vocabulary: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.layers = nn.ModuleList(Scan() for _ in range(2))
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x)
        return out


class Stage(nn.Module):
    """Two convolutions with group norm."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inward), nn.Conv2d(inward, outward, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, outward), nn.Conv2d(outward, outward, 3, padding=1)
        self.short = nn.Conv2d(inward, outward, 1)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.conv1(F.silu(self.norm1(x)))
        out: Tensor = self.short(x) + self.conv2(F.silu(self.norm2(inside)))
        return out


class UNet(nn.Module):
    """Down, across and up again, with a skip that is concatenated."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.across = Stage(width, 2 * width), Stage(2 * width, 2 * width)
        self.up, self.leave = Stage(3 * width, width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.enter(image)
        low = self.across(self.down(F.avg_pool2d(x, 2)))
        wide = F.interpolate(low, scale_factor=2.0, mode="nearest")
        out: Tensor = self.leave(self.up(torch.cat([wide, x], 1)))
        return out


class GraphAttention(nn.Module):
    """Messages along edges, weighted by a softmax over the edges into each node."""

    def __init__(self, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.here, self.there = nn.Linear(WIDTH, num_heads), nn.Linear(WIDTH, num_heads)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        start, end = edges[0], edges[1]
        scores = F.leaky_relu(self.here(x)[end] + self.there(x)[start], 0.2)
        most = torch.full_like(scores[: x.shape[0]], -torch.inf)
        most = most.index_reduce(0, end, scores, "amax", include_self=True)
        raised = torch.exp(scores - most[end])
        total = torch.zeros_like(most).index_add(0, end, raised)
        weights = raised / total[end]
        values = self.value(x).view(x.shape[0], self.num_heads, -1)
        messages = values[start] * weights.unsqueeze(-1)
        mixed = torch.zeros_like(values).index_add(0, end, messages)
        out: Tensor = x + F.elu(self.out(mixed.flatten(1)))
        return out


class Graph(nn.Module):
    """Two rounds of `GraphAttention`, pooled by graph with a scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = nn.ModuleList(GraphAttention() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16)

    def forward(self, x: Tensor, edges: Tensor, graphs: Tensor) -> Tensor:
        for each in self.rounds:
            x = each(x, edges)
        x = self.norm(x)
        pooled = torch.zeros_like(x[:4]).scatter_add(0, graphs.unsqueeze(-1).expand_as(x), x)
        best = x[graphs.argsort(stable=True)].view(4, -1, WIDTH).amax(1)
        out: Tensor = self.head(pooled + best)
        return out


class Cancelling(nn.Module):
    """Differences of nearly equal numbers: log-sum-exp by hand, E[x^2] - E[x]^2, a shift."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale, self.head = nn.Parameter(torch.ones(WIDTH)), nn.Linear(WIDTH, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.inner(self.normed(F.gelu(self.enter(x)) + 1))
        logits = self.head(self.normed(x))
        most = logits.amax(-1, keepdim=True)
        total = torch.log(torch.exp(logits - most).sum(-1, keepdim=True)) + most
        out: Tensor = logits - total
        return out

    def normed(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        spread = (x * x).mean(-1, keepdim=True) - mean * mean
        return (x - mean) * torch.rsqrt(spread.clamp_min(0) + 1e-3) * self.scale
