"""Another BLAS: ops computed in another correct way, as another device or library would."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.truth.watching import (
    CASTS,
    MOVES,
    Args,
    Kwargs,
    Run,
    Site,
    flat,
    mapped,
    one_of,
)

Way = Callable[[Run, Args, Kwargs], Any]


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def widened(value: Any) -> Any:
    """A leaf of a call as it is in float64: tensors, and dtypes that are asked for."""
    if is_float(value):
        return value.double()
    is_wide = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float64 if is_wide else value


def in_float64(func: Run, args: Args, kwargs: Kwargs) -> Any:
    """Compute in float64 and round once."""
    kinds = [x.dtype for x in flat(_kinds(func, args, kwargs)) if isinstance(x, Tensor)]
    out = func(*mapped(widened, args), **mapped(widened, kwargs))
    found = iter(kinds)
    return mapped(lambda x: x.to(next(found)) if isinstance(x, Tensor) else x, out)


def _kinds(func: Run, args: Args, kwargs: Kwargs) -> Any:
    with torch.no_grad():
        return func(*args, **kwargs)


def split_sum(func: Run, args: Args, kwargs: Kwargs) -> Any:
    """A product as the sum of two halves of its inner dim, added in float32 and rounded once."""
    a, b, *rest = args
    if rest or kwargs:
        a, b, bias = _linear(a, b, *rest, **kwargs)
    else:
        bias = None
        b = b.transpose(-1, -2) if func is F.linear else b
    half = a.shape[-1] // 2
    if not half or b.ndim < 2 or a.ndim < 2:
        return in_float64(func, args, kwargs)
    wide = [x.float() for x in (a[..., :half], b[..., :half, :], a[..., half:], b[..., half:, :])]
    total = torch.matmul(wide[2], wide[3]) + torch.matmul(wide[0], wide[1])
    return (total if bias is None else total + bias.float()).to(a.dtype)


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    return x, weight.transpose(-1, -2), bias


def rounded_halves(func: Run, args: Args, kwargs: Kwargs) -> Any:
    """A product as the sum of two halves, each of them rounded to its dtype."""
    x, weight, *bias = args
    half = x.shape[-1] // 2
    if not half or kwargs or func is not F.linear:
        return split_sum(func, args, kwargs)
    first = func(x[..., half:].contiguous(), weight[:, half:].contiguous(), *bias)
    return first + func(x[..., :half].contiguous(), weight[:, :half].contiguous())


def permuted(func: Run, args: Args, kwargs: Kwargs) -> Any:
    """A product with its inner dim in another order."""
    x, weight, *rest = args
    if x.ndim < 2 or weight.ndim < 2 or kwargs:
        return in_float64(func, args, kwargs)
    order = torch.arange(x.shape[-1], device=x.device).flip(0)
    swapped = weight[:, order] if func is F.linear else weight[..., order, :]
    return func(x[..., order], swapped, *rest)


def softmax_by_hand(func: Run, args: Args, kwargs: Kwargs) -> Any:
    """Softmax in float32 without the fused kernel, rounded once."""
    if kwargs.keys() - {"dim"} or len(args) + len(kwargs) != 2:
        return in_float64(func, args, kwargs)
    x, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else -1)
    wide = x.float()
    raised = (wide - wide.amax(dim, keepdim=True)).exp()
    return (raised / raised.sum(dim, keepdim=True)).to(x.dtype)


def layer_norm_by_hand(
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    wide = x.float()
    dims = tuple(range(-len(shape), 0))
    mean = wide.mean(dims, keepdim=True)
    spread = (wide - mean).square().mean(dims, keepdim=True)
    out = (wide - mean) / torch.sqrt(spread + eps)
    out = out if weight is None else out * weight.float()
    return (out if bias is None else out + bias.float()).to(x.dtype)


def norm_by_hand(_: Run, args: Args, kwargs: Kwargs) -> Any:
    return layer_norm_by_hand(*args, **kwargs)


def conv_by_columns(func: Run, args: Args, kwargs: Kwargs) -> Any:
    """A convolution in the memory format that it was not given, which picks another kernel."""
    x, weight, *rest = args
    if x.ndim != 4:
        return in_float64(func, args, kwargs)
    last = torch.channels_last
    return func(x.contiguous(memory_format=last), weight.contiguous(memory_format=last), *rest)


PRODUCTS: tuple[Way, ...] = (split_sum, rounded_halves, permuted, in_float64)
WAYS: dict[str, tuple[Way, ...]] = {
    "linear": PRODUCTS,
    "matmul": (split_sum, permuted, in_float64),
    "bmm": (split_sum, permuted, in_float64),
    "softmax": (softmax_by_hand, in_float64),
    "layer_norm": (norm_by_hand, in_float64),
    "conv2d": (conv_by_columns, in_float64),
}
# Ops of which there is one other way: in float64, rounded once.
WIDE = one_of(
    """
    addmm mm baddbmm einsum conv1d conv_transpose2d scaled_dot_product_attention rms_norm group_norm
    batch_norm instance_norm gelu silu sigmoid tanh exp log log1p expm1 erf softplus rsqrt sqrt pow
    square sum mean var std norm logsumexp log_softmax elu leaky_relu mish celu cos sin index_add
    scatter_add lstm gru avg_pool2d adaptive_avg_pool2d interpolate cumsum prod cross_entropy
    linalg_vector_norm div reciprocal hardswish glu addcmul
    """
)


def other_way(site: Site, func: Run, args: Args, kwargs: Kwargs) -> Any:
    """Compute a call in another correct way, which its place chooses; or as it is."""
    name = site.function
    if name in MOVES or name in CASTS or _writes(func, args, kwargs):
        return func(*args, **kwargs)
    ways = WAYS.get(name, (in_float64,) if name in WIDE else ())
    if not ways:
        return func(*args, **kwargs)
    chosen = zlib.crc32(str(site).encode()) % len(ways)
    return ways[chosen](func, args, kwargs)


def _writes(func: Run, args: Args, kwargs: Kwargs) -> bool:
    """Whether a call changes its argument, or has nothing that could be rounded otherwise."""
    spelled = str(getattr(func, "__name__", ""))
    in_place = spelled.endswith("_") and not spelled.endswith("__")
    in_place = in_place or (spelled.startswith("__i") and spelled != "__invert__")
    return in_place or "out" in kwargs or not any(is_float(x) for x in flat((args, kwargs)))
