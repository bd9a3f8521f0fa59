"""A captured tensor without its wrappers: the dense tensor this process holds, and its layout."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from dumpcmp.pytorch.names import NO_DISPATCH
from dumpcmp.taps.distributed import ranks as distributed


class Plain(NamedTuple):
    """The tensor whose elements are recorded; `problem` says why there are none to record."""

    tensor: Tensor
    layout: str = ""
    problem: str = ""
    seen_in: str = ""


_PLAIN = (Tensor, nn.Parameter)


def plain_of(tensor: Tensor) -> Plain:
    """Unwrap `tensor`, without running any code of a tensor subclass."""
    layout = distributed.layout_of(tensor)
    if type(tensor) not in _PLAIN:
        if (held := distributed.unwrapped(tensor)) is not None:
            return Plain(*held)
        if getattr(type(tensor), "__torch_dispatch__", NO_DISPATCH) is not NO_DISPATCH:
            kind = type(tensor).__name__
            return Plain(tensor, problem=f"{kind} is a wrapper without elements of its own")
        with torch._C.DisableTorchFunctionSubclass():
            tensor = tensor.as_subclass(Tensor)
    if tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested:
        if tensor.device.type == "meta":
            return Plain(tensor, problem="meta tensors have no elements")
        if (tensor.dtype.is_complex and tensor.is_conj()) or tensor.is_neg():
            return Plain(tensor.detach().resolve_conj().resolve_neg(), layout)
        return Plain(tensor, layout)
    return Plain(tensor, problem=f"{_kind(tensor)} tensors have no dense bytes")


def _kind(tensor: Tensor) -> str:
    if tensor.is_nested:
        return "nested"
    return "quantised" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
