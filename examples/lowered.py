"""A gated layer under torch.compile. --wrong: a rule of the compiler for silu is a little off."""

import argparse

import torch
from torch import Tensor, nn

parser = argparse.ArgumentParser()
parser.add_argument("--wrong", action="store_true", help="compile silu by a rule that is wrong")
options = parser.parse_args()


class Gated(nn.Module):
    """A feed-forward with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(32, 32) for _ in range(3))
        self.norm = nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.silu(self.gate(self.norm(x))) * self.up(x))


if options.wrong:
    from torch._inductor.decomposition import decompositions

    decompositions[torch.ops.aten.silu.default] = lambda x: x * torch.sigmoid(1.02 * x)

torch.manual_seed(0)
model = torch.compile(nn.Sequential(Gated(), Gated()))
with torch.no_grad():
    print(model(torch.randn(4, 32)).norm().item())
