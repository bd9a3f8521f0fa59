"""The run was never interrupted."""

import torch.nn.functional as F
from torch import Tensor, optim

from benchmarks.publicbugs.pieces import Mlp, numbers, seeded, weights


def run() -> list[Tensor]:
    model = seeded(Mlp())
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        loss = F.mse_loss(model(numbers(4, 8, seed=step)), numbers(4, 8, seed=step + 9))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return weights(model)
