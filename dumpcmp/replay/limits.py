"""How much memory a call may take: what it would give out is known before it runs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dumpcmp.pytorch.trees import slots_of
from dumpcmp.replay.arguments import CallArguments
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.listed import ReplayFunction
from dumpcmp.replay.unreplayable import Unreplayable

MOST_BYTES = 8 << 30  # of float64 that one call may give out
_WIDTH = 8  # bytes of an element
_BROADCASTS = (FunctionKind.ELEMENTWISE, FunctionKind.ADDS)

# What these give out depends on the values that they are given, so that nothing but those can say
# how much it is: no more than so many elements for each of the first tensor.
_BY_VALUE = {
    "nonzero": 8, "argwhere": 8, "masked_select": 1, "unique": 3, "unique_consecutive": 3,
    "_unique": 3, "_unique2": 3, "getitem": 8, "index": 8, "_unsafe_index": 8, "where": 8,
}  # fmt: skip


def check_size(function: ReplayFunction, arguments: CallArguments, limit: int = MOST_BYTES) -> None:
    """Refuse a call that would give out more than `limit` bytes."""
    nbytes = _WIDTH * _num_elements(function, arguments)
    if nbytes > limit:
        raise Unreplayable(f"it gives out {nbytes:.3g} bytes in float64, and {limit:.3g} may be")


def _num_elements(function: ReplayFunction, arguments: CallArguments) -> float:
    tensors = arguments.tensors()
    if function.name == "repeat_interleave" and len(tensors) > 1:
        rows = tensors[0].numel() / max(1, max(tensors[0].shape, default=1))
        return float(tensors[1].sum()) * max(1.0, rows)
    if function.name in ("bincount", "one_hot"):
        return _counted(function.name, tensors[0], arguments)
    if function.kind in _BROADCASTS and tensors and function.name not in ("outer", "addr"):
        return _broadcast(tensors)
    return _as_meta(function, arguments)


def _broadcast(tensors: list[Tensor]) -> float:
    ndim = max(t.ndim for t in tensors)
    shapes = [(1,) * (ndim - t.ndim) + tuple(t.shape) for t in tensors]
    return math.prod(float(max(sizes)) for sizes in zip(*shapes, strict=True))


def _counted(name: str, ids: Tensor, arguments: CallArguments) -> float:
    told = [leaf for leaf in arguments.leaves() if isinstance(leaf, int)]
    most = max([int(ids.max()) + 1 if ids.numel() else 0, *told])
    return float(most) * (ids.numel() if name == "one_hot" else 1)


def _as_meta(function: ReplayFunction, arguments: CallArguments) -> float:
    """Run the call without memory: tensors have shapes and no elements."""
    try:
        with torch.device("meta"):
            result = function.run(*(shapes := arguments.mapped(_shape)).args, **shapes.kwargs)
    except Exception as error:
        return _by_value(function, arguments, error)
    return float(sum(tensor.numel() for _, tensor in slots_of("", result)))


def _shape(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("meta")
    return leaf.detach().to("meta") if isinstance(leaf, Tensor) else leaf


def _by_value(function: ReplayFunction, arguments: CallArguments, error: Exception) -> float:
    factor = _BY_VALUE.get(function.name)
    if factor is None:
        said = str(error).partition("\n")[0][:120]
        raise Unreplayable(f"how much it gives out cannot be told: {said}") from None
    return float(factor * max((t.numel() for t in arguments.tensors()), default=0))
