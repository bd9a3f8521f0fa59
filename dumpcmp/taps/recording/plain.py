"""The tensor whose elements are recorded, out of whatever stands for it; or why there is none."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from dumpcmp.pytorch.names import NO_DISPATCH, dispatch_keys
from dumpcmp.taps.distributed import ranks as distributed


class Plain(NamedTuple):
    """The tensor whose elements are recorded; `problem` says why there are none to record."""

    tensor: Tensor
    layout: str = ""
    problem: str = ""
    seen_in: str = ""


WRAPPED = "a tensor inside of a transform of torch.func has no elements of its own"
_PLAIN = (Tensor, nn.Parameter)
_counted: dict[int, bool | None] = {}  # by dispatch keys


def plain_of(tensor: Tensor) -> Plain:
    """Unwrap `tensor`, without running any code of a tensor subclass."""
    layout = distributed.layout_of(tensor)
    if counts_writes(tensor) is not None:
        return Plain(tensor, layout)
    if type(tensor) not in _PLAIN:
        if (held := distributed.unwrapped(tensor)) is not None:
            return Plain(*held)
        if getattr(type(tensor), "__torch_dispatch__", NO_DISPATCH) is not NO_DISPATCH:
            kind = type(tensor).__name__
            return Plain(tensor, problem=f"{kind} is a wrapper without elements of its own")
        with torch._C.DisableTorchFunctionSubclass():
            tensor = tensor.as_subclass(Tensor)
    if tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested:
        if tensor.is_meta:
            return Plain(tensor, problem="meta tensors have no elements")
        if problem := _unreadable(tensor):
            return Plain(tensor, problem=problem)
        if (tensor.dtype.is_complex and tensor.is_conj()) or tensor.is_neg():
            return Plain(tensor.detach().resolve_conj().resolve_neg(), layout)
        return Plain(tensor, layout)
    return Plain(tensor, problem=f"{_kind(tensor)} tensors have no dense bytes")


def _unreadable(tensor: Tensor) -> str:
    """Why the elements of a strided tensor are not where its shape says; empty where they are."""
    try:
        storage = tensor.untyped_storage()
        held = storage.nbytes() if storage.data_ptr() else 0  # tensors of zeros have no memory
    except RuntimeError:  # torch.func wraps tensors, and a wrapper has no storage
        return WRAPPED
    size, count = tensor.itemsize, tensor.numel()
    if not count or held >= (tensor.storage_offset() + count) * size:
        return ""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    needed = (tensor.storage_offset() + sum((n - 1) * step for n, step in steps) + 1) * size
    return f"its storage has {held} bytes, its shape needs {needed}" if needed > held else ""


def _kind(tensor: Tensor) -> str:
    if tensor.is_nested:
        return "nested"
    return "quantised" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")


def counts_writes(tensor: Tensor) -> bool | None:
    """Of a tensor that is plain itself, whether torch counts what is written to it, else None.

    All that `plain_of` asks of a kind of tensor is among its dispatch keys, so that it is asked
    once; and to ask some of it would let other threads of Python run in between. None also where
    its storage does not surely hold all elements: `plain_of` finds out.
    """
    if type(tensor) not in _PLAIN:
        return None
    keys = dispatch_keys(tensor).raw_repr()
    if keys not in _counted:
        _counted[keys] = _counts(tensor)
    counted = _counted[keys]
    if counted is None or not tensor.data_ptr():
        return None
    last = tensor.storage_offset() * tensor.itemsize + tensor.nbytes
    return counted if last <= tensor.untyped_storage().nbytes() else None


def version_of(tensor: Tensor) -> int | None:
    """How often torch has counted a write to a plain tensor; None where it does not count."""
    counted = counts_writes(tensor)
    is_counted = not tensor.is_inference() if counted is None else counted
    return tensor._version if is_counted else None


def _counts(tensor: Tensor) -> bool | None:
    is_dense = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested
    if not is_dense or tensor.is_meta or tensor.is_neg() or tensor.is_conj():
        return None
    if _unreadable(tensor) == WRAPPED:
        return None
    return not tensor.is_inference()
