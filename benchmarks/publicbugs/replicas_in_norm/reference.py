"""One process."""

import torch
from torch import Tensor, optim

from benchmarks.publicbugs.pieces import numbers
from benchmarks.publicbugs.replicas_in_norm.bug import kept, whole


def run() -> list[Tensor]:
    model = whole()
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    (model(numbers(4, 8)) - numbers(4, 8, seed=9)).square().sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return kept(model)
