"""Held out a third time: a recurrent net split by gates, and data parallel training by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.taps.distributed.programs.scenarios import Capture

FEATURES, STATE, TIME, BATCH = 6, 8, 4, 6


def _filled(model: nn.Module, seed: int) -> None:
    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=made) * 0.4)


# Each rank computes some of the state; all of it is gathered after every moment.


class Cell(nn.Module):
    """An update gate and a candidate, for the rows of the state that are here."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_x, self.gate_h = nn.Linear(FEATURES, STATE), nn.Linear(STATE, STATE, bias=False)
        self.new_x, self.new_h = nn.Linear(FEATURES, STATE), nn.Linear(STATE, STATE, bias=False)
        self.fault = ""

    def forward(self, x: Tensor, h: Tensor, own: Tensor) -> Tensor:
        z = torch.sigmoid(self.gate_x(x) + self.gate_h(h))
        n = torch.tanh(self.new_x(x) + self.new_h(h))
        if self.fault == "gates exchanged":
            return z * own + (1 - z) * n
        return torch.lerp(own, n, z)


class Recurrent(nn.Module):
    """Two cells, one on the other, and a readout of the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper = Cell(), Cell()
        self.between = nn.Linear(STATE, FEATURES)
        self.readout = nn.Linear(STATE, 3)
        _filled(self, 61)

    def gathered(self, own: Tensor) -> Tensor:
        """All of the state."""
        return own

    def share(self, h: Tensor) -> Tensor:
        """What of the state is here."""
        return h

    def forward(self, xs: Tensor) -> Tensor:
        low = up = xs.new_zeros(xs.shape[1], STATE)
        for x in xs:
            low = self.gathered(self.lower(x, low, self.share(low)))
            up = self.gathered(self.upper(self.between(low), up, self.share(up)))
        out: Tensor = self.readout(up)
        return out


class RecurrentOnRanks(Recurrent):
    """The same with this rank's rows of the state."""

    fault = ""

    def gathered(self, own: Tensor) -> Tensor:
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own.contiguous())
        if self.fault == "parts exchanged":
            parts.reverse()
        return torch.cat(parts, -1)

    def share(self, h: Tensor) -> Tensor:
        return h.chunk(dist.get_world_size(), -1)[dist.get_rank()]


def _moments() -> Tensor:
    return torch.randn(TIME, BATCH, FEATURES, generator=torch.Generator().manual_seed(67))


def recurrent_whole(capture: Capture) -> None:
    """All of the state on one rank."""
    model = Recurrent()
    with capture(), torch.no_grad():
        model(_moments())


def recurrent_split(capture: Capture, fault: str = "") -> None:
    """Half of the state on each rank."""
    size, rank = dist.get_world_size(), dist.get_rank()
    model = RecurrentOnRanks()
    for cell in (model.lower, model.upper):
        for layer in (cell.gate_x, cell.gate_h, cell.new_x, cell.new_h):
            for name, whole in list(layer.named_parameters()):
                setattr(layer, name, nn.Parameter(whole.detach().chunk(size)[rank].clone()))
    model.fault = fault
    model.upper.fault = fault if rank == 1 else ""
    if fault == "stale gate" and rank == 1:
        model.upper.gate_h.weight.data *= 1.03
    with capture(), torch.no_grad():
        model(_moments())


# Data parallel by hand: one flat bucket of gradients, and weights that are updated by hand.


class Cube(torch.autograd.Function):
    """The cube of a number, with a derivative by hand."""

    slope = 3.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        back: Tensor = Cube.slope * x * x * grads[0]
        return back


class Polynomial(nn.Module):
    """Products and cubes, with a scale for each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, STATE), nn.Linear(STATE, 1)
        self.scale = nn.Parameter(torch.empty(STATE))
        _filled(self, 71)

    def forward(self, x: Tensor) -> Tensor:
        cube: Any = Cube.apply
        out: Tensor = self.second(cube(torch.tanh(self.first(x))) * self.scale)
        return out


def _trained(capture: Capture, fault: str, size: int, rank: int) -> None:
    model, made = Polynomial(), torch.Generator().manual_seed(73)
    xs = torch.randn(2, BATCH, FEATURES, generator=made)
    if fault == "old scale" and rank == 1:
        model.scale.data[2] *= 1.2
    Cube.slope = 2.0 if fault == "slope" else 3.0
    with capture():
        for x in xs:
            loss: Any = model(x.chunk(size)[rank]).square().mean()
            loss.backward()
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            if size > 1 and fault != "not averaged":
                dist.all_reduce(flat)
                flat /= size
            parts = torch.split(flat, [grad.numel() for grad in grads])
            with torch.no_grad():
                for p, part in zip(model.parameters(), parts, strict=True):
                    p.sub_(0.1 * part.view_as(p))
                    p.grad = None


def flat_whole(capture: Capture) -> None:
    """The whole batch on one rank."""
    _trained(capture, "", 1, 0)


def flat_spread(capture: Capture, fault: str = "") -> None:
    """Half of the batch on each rank."""
    _trained(capture, fault, dist.get_world_size(), dist.get_rank())
