"""Attention written twice: three projections, and one that the heads share out."""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

HEADS = 4


class Attention(nn.Module):
    """Golden: q, k and v are modules of their own."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o(mixed.transpose(1, 2).flatten(2))


class Mixer(nn.Module):
    """The port: one projection, of which each head has its q, k and v beside each other."""

    def __init__(self, golden: Attention, is_wrong: bool) -> None:
        super().__init__()
        weights = [f.weight.unflatten(0, (HEADS, -1)) for f in (golden.q, golden.k, golden.v)]
        order = (1, 0, 2) if is_wrong else (0, 1, 2)  # q and k changed places
        merged = torch.stack([weights[n] for n in order], dim=1).flatten(0, 2)
        self.qkv = nn.Linear(merged.shape[1], merged.shape[0], bias=False)
        self.qkv.weight, self.out = nn.Parameter(merged.detach()), golden.o

    def forward(self, x: Tensor) -> Tensor:
        merged = self.qkv(x).unflatten(-1, (HEADS, 3, -1))
        q, k, v = (merged[:, :, :, n].transpose(1, 2) for n in range(3))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


parser = argparse.ArgumentParser()
parser.add_argument("--port", action="store_true", help="run the port instead of the original")
parser.add_argument("--wrong", action="store_true", help="q and k of the port change places")
options = parser.parse_args()
torch.manual_seed(0)
layers = [Attention(), Attention()]
model = nn.Sequential(*(Mixer(one, options.wrong) if options.port else one for one in layers))
torch.manual_seed(1)  # the port has drawn numbers of its own, and gets the same inputs
with torch.no_grad():
    print(model(torch.randn(2, 5, 32)).norm().item())
