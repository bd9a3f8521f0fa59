"""How much larger the terms of an op's sums are than what is left of them: its condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dumpcmp.pytorch.trees import slots_of
from dumpcmp.replay.arguments import CallArguments
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.listed import ReplayFunction

_FACTORS = ("alpha", "beta", "value", "other")
_SUMMED = (FunctionKind.ADDS, FunctionKind.CONTRACTS, FunctionKind.SUMS)


def terms_of(
    function: ReplayFunction, arguments: CallArguments, exact: dict[str, Tensor], wide: torch.dtype
) -> dict[str, Tensor]:
    """The sums of the terms' absolute values, by slot, where they can be told.

    They are what the same function gives on absolute values, since it is linear in them; float32
    is enough.
    """
    if function.kind not in _SUMMED:
        return {}
    run = _without_sign(function)
    absolute = _absolute(arguments, wide, function.kind is FunctionKind.ADDS)
    result = run(*absolute.args, **absolute.kwargs)
    found = dict(slots_of("output", result))
    return {slot: found[slot] for slot in exact if slot in found}


def _without_sign(function: ReplayFunction) -> Callable[..., Any]:
    return _ADDITIONS.get(function.name, function.run)


def _lerp(start: Tensor, end: Tensor, weight: Any) -> Tensor:
    return torch.as_tensor(start + weight * (start + end))


_ADDITIONS: dict[str, Callable[..., Any]] = {
    "sub": torch.add, "subtract": torch.add, "rsub": torch.add, "lerp": _lerp,
}  # fmt: skip


def _absolute(arguments: CallArguments, wide: torch.dtype, operands: bool) -> CallArguments:
    def change(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf.abs().to(wide)
        if isinstance(leaf, Tensor) and leaf.is_complex():
            return leaf.abs().to(wide)
        if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
            return wide
        return abs(leaf) if isinstance(leaf, float) else leaf

    found = arguments.mapped(change)
    kwargs = {w: abs(v) if w in _FACTORS and isinstance(v, int) else v
              for w, v in found.kwargs.items()}  # fmt: skip
    args = tuple(abs(v) if operands and type(v) is int else v for v in found.args)
    return CallArguments(args, kwargs)
