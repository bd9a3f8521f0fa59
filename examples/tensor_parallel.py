"""A feed-forward by hand over the ranks of torchrun; on one rank it is the model itself."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn

parser = argparse.ArgumentParser()
parser.add_argument("--no-sum", action="store_true", help="forget to add up what the ranks have")
options = parser.parse_args()
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


class FeedForward(nn.Module):
    """Each rank has some of the hidden features: rows of `up`, columns of `down`."""

    def __init__(self, width: int = 16, hidden: int = 32) -> None:
        super().__init__()
        up, down = torch.randn(hidden, width) / 4, torch.randn(width, hidden) / 6
        self.up = nn.Parameter(up.chunk(world)[rank].clone())
        self.down = nn.Parameter(down.chunk(world, dim=1)[rank].clone())

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(x @ self.up.T) @ self.down.T
        if world > 1 and not options.no_sum:
            dist.all_reduce(out)
        return x + out


if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(FeedForward(), FeedForward())
with torch.no_grad():
    print(model(torch.randn(4, 16)).norm().item())
if world > 1:
    dist.destroy_process_group()
