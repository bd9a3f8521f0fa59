"""With a cache, a port adds the first rows of the ALiBi bias and not the last."""

import torch
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded

BUG = Bug(
    "TransformerLensOrg/TransformerLens#777",
    "port",
    Guilty(("getitem", "add", "softmax"), near=("matmul", "attention*"), step=1),
    "tokens after the first chunk attend to other places",
    planted=True,
)


class Attention(nn.Module):
    """Causal attention over cached keys, with a bias that grows with the distance."""

    cache: Tensor

    def __init__(self, takes_last: bool) -> None:
        super().__init__()
        self.takes_last = takes_last
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(2, 0, 8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        self.cache = torch.cat([self.cache, torch.stack([k, v])], 1)
        keys, values = self.cache
        place = torch.arange(len(keys))
        bias = torch.where(place[:, None] >= place, -0.3 * (place[:, None] - place), -1e9)
        rows = bias[-len(q) :] if self.takes_last else bias[: len(q)]
        out: Tensor = self.out(torch.softmax(q @ keys.T / 8**0.5 + rows, -1) @ values)
        return out


@torch.no_grad()
def infer(takes_last: bool) -> list[Tensor]:
    model, x = seeded(Attention(takes_last)), numbers(6, 8)
    return [torch.cat([model(x[:4]), model(x[4:])])]


def run() -> list[Tensor]:
    return infer(takes_last=False)
