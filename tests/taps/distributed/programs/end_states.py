"""Trains on several ranks, and spoils on the last one what no step reads any more: me DIRECTORY.

Each way to spread the model over ranks, and each fault, is a dump of its own.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dumpcmp.dumping.capturing import capture

STEPS, ROWS = 3, 8
WAYS = ("replicas", "shards")
FAULTS = ("sound", "still", "counted", "kept", "weight")


class Counting(nn.Module):
    """A network with a buffer that each step writes to, and one that none does."""

    counted: Tensor
    still: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)
        self.register_buffer("counted", torch.zeros(3))
        self.register_buffer("still", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.counted.add_(1.0)
        found: Tensor = self.last(torch.tanh(self.norm(self.first(x))))
        return found


def train(path: Path, rank: int, num_ranks: int, way: str, fault: str) -> None:
    """Train on the rows of this rank, and spoil something after the last step."""
    torch.manual_seed(0)
    net = Counting()
    model: nn.Module = net
    if way == "replicas":
        model = DistributedDataParallel(net, broadcast_buffers=False)
    elif way == "shards":
        fully_shard(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    with capture(net, path, backward=True):
        for step in range(STEPS):
            batch = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(step))
            model(batch.chunk(num_ranks)[rank]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if rank == num_ranks - 1:
            spoil(net, optimizer, fault)


@torch.no_grad()
def spoil(net: Counting, optimizer: torch.optim.Optimizer, fault: str) -> None:
    if fault in ("still", "counted"):
        getattr(net, fault).numpy()[1] += 1.0  # which torch does not count
    elif fault == "kept":
        _own(optimizer.state[net.first.weight]["exp_avg"]).mul_(1.01)
    elif fault == "weight":
        _own(net.first.weight).mul_(1.1)


def _own(tensor: Any) -> Tensor:
    """What this rank has of a tensor."""
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for way in WAYS:
        for fault in FAULTS:
            train(directory / f"{way}-{fault}", dist.get_rank(), dist.get_world_size(), way, fault)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
