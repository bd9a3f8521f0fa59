"""A custom op with a reference: what it computes is said once, in plain PyTorch."""

import argparse

import torch
from torch import Tensor, nn

import dumpcmp

parser = argparse.ArgumentParser()
parser.add_argument("--wrong", action="store_true", help="a kernel that is off by one in the mean")
options = parser.parse_args()


@torch.library.custom_op("examples::layer_scale", mutates_args=())
def layer_scale(x: Tensor, weight: Tensor) -> Tensor:
    """The kernel: x over its standard deviation, times the weight."""
    count = x.shape[-1] - 1 if options.wrong else x.shape[-1]
    spread = (x - x.mean(-1, keepdim=True)).square().sum(-1, keepdim=True) / count
    return x * torch.rsqrt(spread) * weight


@dumpcmp.reference("examples::layer_scale")
def reference(x: Tensor, weight: Tensor) -> Tensor:
    """What it should compute. dumpcmp runs it in float64 on what the kernel was given."""
    return x / x.std(-1, correction=0, keepdim=True) * weight


class Scaled(nn.Module):
    """Two layers with the op between them."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(16, 64), nn.Linear(64, 8)
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(layer_scale(self.before(x), self.weight))


torch.manual_seed(0)
with torch.no_grad():
    print(Scaled()(torch.randn(4, 16)).norm().item())
