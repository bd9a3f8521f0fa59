"""Weights of an exported program, at the paths that they had in the model that was exported."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def plant(root: nn.Module, name: str, tensor: Tensor, is_parameter: bool) -> Tensor | None:
    """Have `tensor` in `root` as a weight of this name; None where something else is there."""
    path, _, word = name.rpartition(".")
    holder: Any = root
    for step in filter(None, path.split(".")):
        if step not in holder._modules:
            holder.add_module(step, nn.Module())
        holder = holder._modules[step]
    if hasattr(holder, word):
        return None
    if not is_parameter:
        holder.register_buffer(word, tensor)
        return tensor
    weight = nn.Parameter(tensor, requires_grad=False)
    holder.register_parameter(word, weight)
    return weight
