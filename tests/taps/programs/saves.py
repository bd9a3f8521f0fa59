"""Saves values by name, inside and outside of a model."""

import torch
from torch import Tensor, nn

import dumpcmp


class Saver(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for i in range(2):
            dumpcmp.save("doubled", x * (2 + i))
        return x + 1


dumpcmp.save("before", torch.arange(3))
Saver()(torch.ones(2))
