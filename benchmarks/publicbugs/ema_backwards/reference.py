"""The average as a sum of products, as the formula has it."""

import torch
import torch.nn.functional as F
from torch import Tensor, optim

from benchmarks.publicbugs.ema_backwards.bug import Averaged
from benchmarks.publicbugs.pieces import numbers


def run() -> list[Tensor]:
    both = Averaged()
    optimizer = optim.SGD(both.model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        loss = F.mse_loss(both(numbers(4, 8, seed=step)), numbers(4, 8, seed=step + 9))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            for kept, one in zip(both.average.parameters(), both.model.parameters(), strict=True):
                kept.copy_(0.9 * kept + 0.1 * one)
    with torch.no_grad():
        return [both.eval()(numbers(4, 8))]
