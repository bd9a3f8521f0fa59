"""Held out again: experts in a loop, groups of tokens in training, functional collectives."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional

from tests.taps.distributed.programs.scenarios import Capture

DIM, FFN, NUM, SEQ = 16, 24, 4, 10


def _drawn(model: nn.Module, seed: int) -> None:
    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=made) * 0.3 + (weight.ndim == 1) * 0.7)


# Experts one after the other; each rank has some, and what they give is added up.


class StackedExperts(nn.Module):
    """Each token to two experts, which are rows of stacked weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_weight = nn.Parameter(torch.empty(NUM, DIM))
        self.w_in, self.w_out = (
            nn.Parameter(torch.empty(NUM, FFN, DIM)),
            nn.Parameter(torch.empty(NUM, DIM, FFN)),
        )
        self.first, self.fault = 0, ""

    def forward(self, x: Tensor) -> Tensor:
        probabilities = F.softmax(x @ self.gate_weight.T, dim=-1)
        top, ids = torch.topk(probabilities, 2, dim=-1)
        top = top / top.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for n in range(self.w_in.shape[0]):
            scale = (top * (ids == self.first + n)).sum(-1, keepdim=True)
            if self.fault == "scaled twice" and n == 1:
                scale = scale * scale
            hidden = F.gelu(F.linear(x, self.w_in[n]))
            if self.fault == "tanh gelu" and n == 1:
                hidden = F.relu(F.linear(x, self.w_in[n]))
            out = out + scale * F.linear(hidden, self.w_out[n])
        if self.first or self.w_in.shape[0] < NUM:
            dist.all_reduce(out)
        return out


class Stacked(nn.Module):
    """Two blocks of such experts."""

    def __init__(self) -> None:
        super().__init__()
        self.pre = nn.ModuleList(nn.RMSNorm(DIM) for _ in range(2))
        self.ffn = nn.ModuleList(StackedExperts() for _ in range(2))
        _drawn(self, 41)

    def forward(self, x: Tensor) -> Tensor:
        for norm, ffn in zip(self.pre, self.ffn, strict=True):
            x = x + ffn(norm(x))
        return x


def _inputs() -> Tensor:
    return torch.randn(SEQ, DIM, generator=torch.Generator().manual_seed(43))


def stacked_whole(capture: Capture) -> None:
    """All experts in one loop."""
    model = Stacked()
    with capture(), torch.no_grad():
        model(_inputs())


def stacked_spread(capture: Capture, fault: str = "") -> None:
    """A loop over this rank's experts, and the sum over the ranks."""
    size, rank = dist.get_world_size(), dist.get_rank()
    model = Stacked()
    for number, ffn in enumerate(model.ffn):
        assert isinstance(ffn, StackedExperts)
        ffn.first = rank * NUM // size
        for name in ("w_in", "w_out"):
            whole = getattr(ffn, name).detach()
            setattr(ffn, name, nn.Parameter(whole.chunk(size)[rank].clone()))
        ffn.fault = fault if number == 1 and rank == 1 else ""
        if fault == "old expert" and number == 1 and rank == 0:
            ffn.w_out.data[1] *= 1.05
    with capture(), torch.no_grad():
        model(_inputs())


# A loop over groups of tokens, in training.


class Gated(nn.Module):
    """Per group: the mean of its tokens scales them, and the largest few of each channel stay."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)
        self.groups, self.fault = groups, ""

    def one(self, part: Tensor) -> Tensor:
        """One group."""
        h = torch.tanh(self.mix(part))
        score = torch.sigmoid(h.mean(0, keepdim=True))
        if self.fault == "sum for mean":
            score = torch.sigmoid(h.sum(0, keepdim=True))
        order = h.cumsum(0) / torch.arange(1, len(h) + 1, dtype=h.dtype)[:, None]
        return h * score + (0.5 if self.fault != "half left out" else 1.0) * order

    def forward(self, x: Tensor) -> Tensor:
        if self.groups == 1:
            return self.one(x)
        return torch.cat([self.one(part) for part in torch.split(x, len(x) // self.groups)])


class Grouped(nn.Module):
    """Two of them and a head."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.body = nn.ModuleList(Gated(groups) for _ in range(2))
        self.head = nn.Linear(DIM, 5)
        _drawn(self, 47)

    def forward(self, x: Tensor) -> Tensor:
        for gated in self.body:
            x = x + gated(x)
        out: Tensor = self.head(x)
        return out


def grouped_whole(capture: Capture) -> None:
    """Both groups on one rank."""
    model = Grouped(2)
    with capture():
        model(_inputs()).square().mean().backward()


def grouped_spread(capture: Capture, fault: str = "") -> None:
    """A group on each rank; gradients are averaged over them."""
    size, rank = dist.get_world_size(), dist.get_rank()
    model: Any = Grouped(1)
    model.body[1].fault = fault if rank == 1 else ""
    parallel = nn.parallel.DistributedDataParallel(model)
    if fault == "stale mix" and rank == 1:  # what a rank has before, DDP replaces by rank 0's
        model.body[1].mix.weight.data *= 1.05
    with capture():
        parallel(_inputs().chunk(size)[rank]).square().mean().backward()


# Tensor parallel by functional collectives.


class Mlp(nn.Module):
    """Up, square of relu, down; with ranks, this one's columns and rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up, self.down = nn.Linear(DIM, FFN), nn.Linear(FFN, DIM, bias=False)
        self.ranks: list[int] = []
        self.fault = ""

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.up(self.norm(x))).square()
        out: Tensor = self.down(h)
        if not self.ranks or self.fault == "not summed":
            return x + out
        kind = "max" if self.fault == "largest for sum" else "sum"
        summed: Tensor = functional.all_reduce(out, kind, self.ranks)
        return x + summed


def _mlps() -> nn.Sequential:
    model = nn.Sequential(*(Mlp() for _ in range(3)))
    _drawn(model, 53)
    return model


def functional_whole(capture: Capture) -> None:
    """The blocks on one rank."""
    model = _mlps()
    with capture(), torch.no_grad():
        model(_inputs())


def functional_split(capture: Capture, fault: str = "") -> None:
    """Columns of the first, rows of the second product on each rank."""
    size, rank = dist.get_world_size(), dist.get_rank()
    model: Any = _mlps()
    for number, block in enumerate(model):
        block.ranks = list(range(size))
        block.fault = fault if number == 1 else ""
        for holder, name, dim in (
            (block.up, "weight", 0),
            (block.up, "bias", 0),
            (block.down, "weight", 1),
        ):
            part = getattr(holder, name).detach().chunk(size, dim)[rank].clone()
            setattr(holder, name, nn.Parameter(part))
        if fault == "bias of another" and number == 1 and rank == 1:
            block.up.bias.data.zero_()
    with capture(), torch.no_grad():
        model(_inputs())
