"""A mixture of experts by hand: each rank has some of them, and tokens travel by all_to_all."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tests.taps.distributed.programs.decoder import seeded
from tests.taps.distributed.programs.scenarios import Capture

WIDTH, HIDDEN, EXPERTS, TOKENS = 16, 24, 4, 12


class Expert(nn.Module):
    """A gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, HIDDEN)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Mixture(nn.Module):
    """Every token goes to the expert that its router likes best."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        scores = F.softmax(self.router(x), dim=-1)
        weight, chosen = scores.max(-1)
        order = torch.argsort(chosen, stable=True)
        rows = x[order]
        counts = torch.bincount(chosen, minlength=EXPERTS).tolist()
        parts = torch.split(rows, counts)
        made = torch.cat([e(p) for e, p in zip(self.experts, parts, strict=True)])
        back = torch.empty_like(made)
        back[order] = made
        return back * weight[:, None]


class SpreadMixture(nn.Module):
    """The same with this rank's experts only; its tokens are its share of the batch."""

    def __init__(self, whole: Mixture, fault: str) -> None:
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.router, self.fault = whole.router, fault
        self.num = EXPERTS // size
        numbers = range(rank * self.num, (rank + 1) * self.num)
        self.experts = nn.ModuleDict({str(n): whole.experts[n] for n in numbers})

    def forward(self, x: Tensor) -> Tensor:
        size = dist.get_world_size()
        scores = F.softmax(self.router(x), dim=-1)
        weight, chosen = scores.max(-1)
        if self.fault == "wrong expert" and dist.get_rank() == 1:
            chosen = (chosen + 1) % EXPERTS
        order = torch.argsort(chosen, stable=True)
        rows = x[order]
        counts = torch.bincount(chosen, minlength=EXPERTS)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent = counts.view(size, -1).sum(1).tolist()
        got = theirs.view(size, -1).sum(1).tolist()
        here = rows.new_empty(sum(got), WIDTH)
        dist.all_to_all_single(here, rows, got, sent)
        numbers = torch.arange(self.num).repeat(size).repeat_interleave(theirs)
        there = torch.argsort(numbers, stable=True)
        parts = torch.split(here[there], torch.bincount(numbers, minlength=self.num).tolist())
        made = torch.cat([e(p) for e, p in zip(self.experts.values(), parts, strict=True)])
        out = torch.empty_like(made)
        out[there] = made
        returned = rows.new_empty(len(rows), WIDTH)
        dist.all_to_all_single(returned, out, sent, got)
        back = torch.empty_like(returned)
        if self.fault == "permutation":
            order = torch.argsort(chosen, stable=True, descending=True)
        back[order] = returned
        return back * weight[:, None]


class Router(nn.Module):
    """Two mixtures with norms, on rows of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(WIDTH), "moe": Mixture()}) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleDict)
            x = x + layer["moe"](layer["norm"](x))
        out: Tensor = self.head(x)
        return out


def _tokens() -> Tensor:
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))


def whole(capture: Capture) -> None:
    """All experts on one rank."""
    model = seeded(Router, 0.5)
    with capture(), torch.no_grad():
        model(_tokens())


def spread(capture: Capture, fault: str = "") -> None:
    """Two experts a rank; tokens are sharded over the ranks."""
    model = seeded(Router, 0.5)
    for number, layer in enumerate(model.layers):
        assert isinstance(layer, nn.ModuleDict) and isinstance(layer["moe"], Mixture)
        layer["moe"] = SpreadMixture(layer["moe"], fault if number == 1 else "")
    if fault == "weight" and dist.get_rank() == 1:
        expert: Any = model.get_submodule("layers.1.moe.experts.3")
        with torch.no_grad():
            expert.down.weight.mul_(1.05)
    with capture(), torch.no_grad():
        model(_tokens().chunk(dist.get_world_size())[dist.get_rank()])
