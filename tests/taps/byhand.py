"""An independent capture: forward hooks on each module, written without the package's own code."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

Caught = dict[tuple[str, int, str], Tensor]  # (op, call, slot) -> a clone


def catch(model: nn.Module) -> tuple[Caught, list[Any]]:
    """Register hooks on every module of `model`; what they catch, and their handles."""
    caught: Caught = {}
    counts: Counter[str] = Counter()
    handles = []
    for name, module in model.named_modules():
        op = name or "<root>"

        def before(module: Any, args: Any, kwargs: Any, op: str = op) -> None:
            call = counts[op]
            for i, value in enumerate(args):
                _clone(caught, op, call, f"input.{i}", value)
            for word, value in kwargs.items():
                _clone(caught, op, call, f"input.{word}", value)

        def after(module: Any, args: Any, kwargs: Any, result: Any, op: str = op) -> None:
            alone = isinstance(result, Tensor)
            _clone(caught, op, counts[op], "output.0" if alone else "output", result)
            counts[op] += 1

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after, with_kwargs=True))
    return caught, handles


def _clone(caught: Caught, op: str, call: int, slot: str, value: Any) -> None:
    if isinstance(value, Tensor):
        with torch.no_grad():
            caught[op, call, slot] = value.detach().clone()
    elif dataclasses.is_dataclass(value):
        for item in dataclasses.fields(value):
            _clone(caught, op, call, f"{slot}.{item.name}", getattr(value, item.name))
    elif isinstance(value, dict):
        for word, part in value.items():
            _clone(caught, op, call, f"{slot}.{word}", part)
    elif isinstance(value, (tuple, list)):
        for i, part in enumerate(value):
            _clone(caught, op, call, f"{slot}.{i}", part)
