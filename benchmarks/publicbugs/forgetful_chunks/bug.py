"""A state space layer starts each chunk of a prompt from an empty state."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.publicbugs.corpus import Bug, Guilty
from benchmarks.publicbugs.pieces import numbers, seeded

BUG = Bug(
    "huggingface/transformers#46741",
    "hugging face",
    Guilty(("cat", "conv1d", "mul", "pad", "zeros", "zeros_like"), near=("*mixer*", "add"), step=1),
    "tokens of the second chunk are as if nothing was before them",
    planted=True,
    held_out=True,
)


class Mixer(nn.Module):
    """A causal convolution and a decaying sum, both with a state between calls."""

    tail: Tensor
    state: Tensor

    def __init__(self, remembers: bool) -> None:
        super().__init__()
        self.remembers = remembers
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)
        self.kernel = nn.Parameter(torch.empty(8, 1, 3))
        self.register_buffer("tail", torch.zeros(8, 2), persistent=False)
        self.register_buffer("state", torch.zeros(8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        given = self.inner(x).T
        tail = self.tail if self.remembers else torch.zeros_like(self.tail)
        joined = torch.cat([tail, given], 1)
        self.tail = joined[:, -2:]
        convolved = F.conv1d(joined[None], self.kernel, groups=8)[0]
        state = self.state if self.remembers else torch.zeros_like(self.state)
        states = []
        for column in convolved.unbind(1):
            state = state * 0.8 + column
            states.append(state)
        self.state = state
        out: Tensor = self.outer(torch.stack(states))
        return out


class Model(nn.Module):
    def __init__(self, remembers: bool) -> None:
        super().__init__()
        self.mixer = Mixer(remembers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.mixer(x)
        return out


@torch.no_grad()
def infer(remembers: bool) -> list[Tensor]:
    model, x = seeded(Model(remembers)), numbers(7, 8)
    return [torch.cat([model(x[:4]), model(x[4:])])]


def run() -> list[Tensor]:
    return infer(remembers=False)
