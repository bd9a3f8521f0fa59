"""A factory of a model and its inputs."""

import torch
from torch import nn


def build() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """A model in training, and a batch for it."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU()), (torch.randn(16, 64),)
