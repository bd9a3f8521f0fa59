"""Data parallelism by hand after the backward pass: one flat bucket of gradients, two steps."""

from contextlib import nullcontext
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


def summed_up(capture: Capture, is_whole: bool = False) -> None:
    """Two batches for each update of the weights; DDP reduces gradients in the second alone."""
    rank, size = (0, 1) if is_whole else (dist.get_rank(), dist.get_world_size())
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(6, 5)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model = model if is_whole else nn.parallel.DistributedDataParallel(model)
    batches = torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(1))
    with capture():
        for number, batch in enumerate(batches):
            is_last = is_whole or number % 2 == 1
            with nullcontext() if is_last else model.no_sync():  # type: ignore[operator]
                loss: Any = model(batch.chunk(size)[rank]).square().mean()
                loss.backward()
        optimiser.step()
