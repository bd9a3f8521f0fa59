"""Factories of models, for --model."""

from typing import Any

import torch
from torch import Tensor, nn


def build() -> tuple[nn.Module, tuple[Tensor]]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh()), (torch.ones(2, 3),)


def build_with_keywords() -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    return nn.Bilinear(2, 3, 4), {"input1": torch.ones(5, 2), "input2": torch.ones(5, 3)}


def build_alone() -> nn.Module:
    model = nn.Linear(2, 2)
    model.example_inputs = (torch.ones(1, 2),)  # type: ignore[assignment]
    return model


def build_nothing() -> int:
    return 3
