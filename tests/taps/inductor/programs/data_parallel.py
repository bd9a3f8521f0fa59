"""One compiled training step: alone, or with the batch spread over ranks by DDP."""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.tanh(self.gate(x)) * self.up(x)
        return out


def main() -> None:
    torch.manual_seed(0)
    model: nn.Module = Net()
    x = torch.linspace(-1, 1, 32).reshape(4, 8)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        x = x.chunk(dist.get_world_size())[dist.get_rank()]
    torch.compile(model)(x).square().mean().backward()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
