"""Has functions that are given no floats make float64, without a setting of the whole process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.op_names import OpSet
from dumpcmp.replay.arguments import CallArguments
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.listed import ReplayFunction

# What makes floats from nothing, of the default dtype unless it is told another.
_FLOATS = OpSet("ones zeros eye linspace logspace fft_fftfreq fft_rfftfreq")
_LIKE_NUMBERS = OpSet("full arange tensor scalar_tensor")  # where these are floats
_EXACT = (FunctionKind.MOVES, FunctionKind.CHOOSES, FunctionKind.DRAWS, FunctionKind.NOTHING)


def making_float64(function: ReplayFunction, arguments: CallArguments) -> CallArguments:
    """`arguments` with which the function gives out float64 where it would the default dtype."""
    leaves = arguments.leaves()
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
        return arguments
    has_floats = any(isinstance(leaf, float) for leaf in leaves)
    if not tensors:
        makes = function.name in _FLOATS or (function.name in _LIKE_NUMBERS and has_floats)
        told = any(isinstance(leaf, torch.dtype) for leaf in leaves)
        return _told(arguments) if makes and not told else arguments
    if function.name == "where" and has_floats:
        return _with_tensors(function, arguments)
    if function.kind in _EXACT or not _computes(function, leaves, has_floats):
        return arguments
    return arguments.mapped(_to_float64)


def _told(arguments: CallArguments) -> CallArguments:
    kwargs = arguments.kwargs | {"dtype": torch.float64}
    return CallArguments(arguments.args, kwargs, arguments.autocast)


def _with_tensors(function: ReplayFunction, arguments: CallArguments) -> CallArguments:
    """Numbers to choose between as tensors; an overload for numbers takes none."""
    if isinstance(function.run, torch._ops.OpOverload):
        return arguments
    return arguments.mapped(
        lambda leaf: torch.tensor(leaf, dtype=torch.float64) if isinstance(leaf, float) else leaf
    )


def _computes(function: ReplayFunction, leaves: list[Any], has_floats: bool) -> bool:
    """Whether a function of integers gives out floats."""
    told = [leaf for leaf in leaves if isinstance(leaf, torch.dtype)]
    if told:
        return any(dtype.is_floating_point for dtype in told)
    return has_floats or function.name not in EXACT_OF_INTEGERS


# Functions that give out integers where they are given nothing else.
EXACT_OF_INTEGERS = OpSet(
    """
    _int_mm add addcmul bmm cumprod cumsum diff dot einsum floor_divide fmod index_add matmul mm
    mul multiply nansum outer pow prod remainder rsub scatter_add square sub subtract sum tensordot
    trace
    """
)


def _to_float64(leaf: Any) -> Any:
    return leaf.to(torch.float64) if isinstance(leaf, Tensor) else leaf
