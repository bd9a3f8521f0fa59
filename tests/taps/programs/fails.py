"""Raises in the middle of its second token."""

import torch
from torch import Tensor, nn


class Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(2, 2)
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.proj(x)
        self.num_calls += 1
        if self.num_calls == 2:
            raise ValueError("the user's own trouble")
        return y.relu()


model = Fragile()
model(torch.ones(1, 2))
model(torch.ones(1, 2))
