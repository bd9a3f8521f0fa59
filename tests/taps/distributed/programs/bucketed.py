"""Data parallelism by hand after the backward pass: one flat bucket of gradients, two steps."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.taps.distributed.programs.scenarios import Capture


def whole(capture: Capture) -> None:
    """The whole batch on one rank."""
    _train(capture, 0, 1, "")


def spread(capture: Capture, fault: str = "") -> None:
    """A share of the batch on each rank."""
    _train(capture, dist.get_rank(), dist.get_world_size(), fault)


def _train(capture: Capture, rank: int, size: int, fault: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    weights = list(model.parameters())
    batches = torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(1))
    with capture():
        for batch in batches:
            loss: Any = model(batch.chunk(size)[rank]).square().mean()
            loss.backward()
            grads = [weight.grad for weight in weights if weight.grad is not None]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            if size > 1 and fault != "bucket not added up":
                dist.all_reduce(flat)
                flat /= 1 if fault == "bucket not averaged" else size
            parts = torch.split(flat, [grad.numel() for grad in grads])
            with torch.no_grad():
                for weight, part in zip(weights, parts, strict=True):
                    weight.sub_(0.1 * part.view_as(weight))
                    weight.grad = None
