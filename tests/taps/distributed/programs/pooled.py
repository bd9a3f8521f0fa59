"""A mean over tokens, of which each rank has some: python -m me PATH."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import dumpcmp

WAYS = ("averaged", "not divided", "not added up", "added up after")


class Pooled(nn.Module):
    """A product of each token, their mean, and another product."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 5, bias=False)

    def forward(self, tokens: Tensor, way: str) -> Tensor:
        mean = self.first(tokens).tanh().mean(1)
        if way in ("averaged", "not divided"):
            dist.all_reduce(mean)
        result: Tensor = self.last(mean / dist.get_world_size() if way == "averaged" else mean)
        return result


def dump(path: Path, way: str, tokens: Tensor) -> None:
    """Run the model on `tokens`, and add up what it gives where that is the `way`."""
    model = Pooled()
    with torch.no_grad(), dumpcmp.capture(model, path):
        given = model(tokens, way)
        if way == "added up after":
            dist.all_reduce(given)


def samples() -> Tensor:
    return torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(1))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    mine = samples().chunk(dist.get_world_size(), 1)[dist.get_rank()]
    for way in WAYS:
        dump(Path(sys.argv[1]) / way, way, mine)
    dist.destroy_process_group()
