"""Ops on integers that stand for numbers, each with a scale and a zero point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.onnx_ops.op_table import MICROSOFT, define, dtype_numbered
from dumpcmp.replay.onnx_ops.products import conv
from dumpcmp.replay.unreplayable import Unreplayable

_MOVES, _CHOOSES = FunctionKind.MOVES, FunctionKind.CHOOSES
_CONTRACTS, _EACH = FunctionKind.CONTRACTS, FunctionKind.ELEMENTWISE


def _along(one: Tensor | None, x: Tensor, axis: int) -> Tensor | float:
    """A scale or zero point as it lies beside `x`."""
    if one is None:
        return 0.0
    if one.numel() == 1:
        return one.reshape(())
    if one.ndim != 1:
        raise Unreplayable("levels of blocks are not known")
    return one.reshape(*[-1 if dim == axis % x.ndim else 1 for dim in range(x.ndim)])


def _wide(*given: Tensor | None) -> torch.dtype:
    floats = [each.dtype for each in given if each is not None and each.is_floating_point()]
    return torch.float64 if torch.float64 in floats else torch.float32


def decoded(x: Tensor, scale: Tensor, zero: Tensor | None, axis: int = 1) -> Tensor:
    """The numbers that codes stand for."""
    dtype = _wide(scale)
    at = _along(zero, x, axis)
    shifted = x.to(dtype) - (at.to(dtype) if isinstance(at, Tensor) else at)
    return shifted * _along(scale.to(dtype), x, axis)


def encoded(
    x: Tensor, scale: Tensor, zero: Tensor | None, dtype: torch.dtype, axis: int = 1
) -> Tensor:
    """The codes of the nearest levels."""
    at = _along(zero, x, axis)
    wide = x.to(_wide(x, scale))
    levels = torch.round(wide / _along(scale.to(wide.dtype), x, axis))
    levels = levels + (at.to(wide.dtype) if isinstance(at, Tensor) else at)
    bounds = torch.iinfo(dtype)
    return levels.clamp(bounds.min, bounds.max).to(dtype)


@define("DequantizeLinear", _EACH)
@define("DequantizeLinear", _EACH, domain=MICROSOFT)
def _dequantize(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:  # fmt: skip
    del output_dtype
    if block_size:
        raise Unreplayable("levels of blocks are not known")
    return decoded(x, scale, zero, axis)


@define("QuantizeLinear", _CHOOSES)
@define("QuantizeLinear", _CHOOSES, domain=MICROSOFT)
def _quantize(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0, precision: int = 0, saturate: int = 1,
) -> Tensor:  # fmt: skip
    del precision, saturate
    if block_size:
        raise Unreplayable("levels of blocks are not known")
    told = dtype_numbered(output_dtype) if output_dtype else torch.uint8
    return encoded(x, scale, zero, told if zero is None else zero.dtype, axis)


@define("DynamicQuantizeLinear", _CHOOSES)
def _dynamic(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    least, most = x.min().clamp(max=0.0), x.max().clamp(min=0.0)
    scale = (most - least) / 255
    zero = torch.round((-least / scale).clamp(0, 255)).to(torch.uint8)
    return encoded(x, scale, zero, torch.uint8), scale, zero


def _shifted(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """Codes without their zero point, in numbers that hold all of their products."""
    wide = x.to(torch.float64)
    if zero is None:
        return wide
    if zero.numel() == 1:
        return wide - zero.reshape(()).double()
    shape = [1] * x.ndim
    shape[axis] = -1
    return wide - zero.double().reshape(shape)


@define("MatMulInteger", _MOVES)
def _matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    return (_shifted(a, a_zero, -2) @ _shifted(b, b_zero, -1)).to(torch.int32)


@define("ConvInteger", _MOVES)
def _conv_integer(
    x: Tensor, weight: Tensor, x_zero: Tensor | None = None, weight_zero: Tensor | None = None,
    **told: Any,
) -> Tensor:  # fmt: skip
    made = conv(_shifted(x, x_zero, 1), _shifted(weight, weight_zero, 0), **told)
    return made.to(torch.int32)


@define("MatMulIntegerToFloat", _CONTRACTS, domain=MICROSOFT)
def _matmul_integer_to_float(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, a_zero: Tensor | None = None,
    b_zero: Tensor | None = None, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    dtype = _wide(a_scale)
    made = _shifted(a, a_zero, -2) @ _shifted(b, b_zero, -1)
    made = (made * (a_scale * b_scale).double()).to(dtype)
    return made if bias is None else made + bias


@define("DynamicQuantizeMatMul", _CONTRACTS, domain=MICROSOFT)
def _dynamic_matmul(
    a: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    codes, scale, zero = _dynamic(a)
    return _matmul_integer_to_float(codes, b, scale.to(a.dtype), b_scale, zero, b_zero, bias)


@define("QLinearMatMul", _CHOOSES)
def _qlinear_matmul(
    a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor,
    scale: Tensor, zero: Tensor,
) -> Tensor:  # fmt: skip
    made = _shifted(a, a_zero, -2) @ _shifted(b, b_zero, -1)
    made = made * (a_scale.double() * b_scale.double())
    return encoded(made, scale.double(), zero, zero.dtype)


@define("QLinearConv", _CHOOSES)
@define("QLinearConv", _CHOOSES, domain=MICROSOFT)
def _qlinear_conv(
    x: Tensor, x_scale: Tensor, x_zero: Tensor, weight: Tensor, weight_scale: Tensor,
    weight_zero: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None = None,
    channels_last: int = 0, **told: Any,
) -> Tensor:  # fmt: skip
    seen = x.movedim(-1, 1) if channels_last else x
    numbers = None if bias is None else bias.double()
    made = conv(_shifted(seen, x_zero, 1), _shifted(weight, weight_zero, 0), numbers, **told)
    by = weight_scale.double().reshape(1, -1, *[1] * (made.ndim - 2))
    found = encoded(made * x_scale.double() * by, scale.double(), zero, zero.dtype)
    return found.movedim(1, -1) if channels_last else found


def _pairwise(compute: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def run(
        a: Tensor, a_scale: Tensor, a_zero: Tensor | None, b: Tensor, b_scale: Tensor,
        b_zero: Tensor | None, scale: Tensor, zero: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        made = compute(decoded(a, a_scale.double(), a_zero), decoded(b, b_scale.double(), b_zero))
        return encoded(made, scale.double(), zero, a.dtype)

    return run


define("QLinearAdd", _CHOOSES, domain=MICROSOFT)(_pairwise(torch.add))
define("QLinearMul", _CHOOSES, domain=MICROSOFT)(_pairwise(torch.mul))


def _single(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(
        x: Tensor, x_scale: Tensor, x_zero: Tensor | None, scale: Tensor,
        zero: Tensor | None = None, **told: Any,
    ) -> Tensor:  # fmt: skip
        made = compute(decoded(x, x_scale.double(), x_zero), **told)
        return encoded(made, scale.double(), zero, x.dtype)

    return run


define("QLinearSigmoid", _CHOOSES, domain=MICROSOFT)(_single(torch.sigmoid))
define("QLinearLeakyRelu", _CHOOSES, domain=MICROSOFT)(
    _single(lambda x, alpha=0.01: F.leaky_relu(x, alpha))
)


def _global_average(x: Tensor, channels_last: int = 0) -> Tensor:
    dims = tuple(range(1, x.ndim - 1)) if channels_last else tuple(range(2, x.ndim))
    return x.mean(dims, keepdim=True)


define("QLinearGlobalAveragePool", _CHOOSES, domain=MICROSOFT)(_single(_global_average))


@define("QLinearConcat", _CHOOSES, domain=MICROSOFT)
def _qlinear_concat(scale: Tensor, zero: Tensor, *given: Tensor, axis: int) -> Tensor:
    triples = zip(given[::3], given[1::3], given[2::3], strict=True)
    parts = [decoded(x, own.double(), at) for x, own, at in triples]
    return encoded(torch.cat(parts, axis), scale.double(), zero, zero.dtype)


@define("MatMulNBits", _CONTRACTS, domain=MICROSOFT)
def _matmul_nbits(
    a: Tensor, b: Tensor, scales: Tensor, zeros: Tensor | None = None, groups: Tensor | None = None,
    bias: Tensor | None = None, K: int = 0, N: int = 0, bits: int = 4,  # noqa: N803
    block_size: int = 32, accuracy_level: int = 0, weight_prepacked: int = 0,
) -> Tensor:  # fmt: skip
    del accuracy_level
    if bits not in (4, 8) or groups is not None or weight_prepacked:
        raise Unreplayable("this form of it is not known")
    codes = _unpacked(b.reshape(N, -1), bits)
    count = codes.shape[-1] // block_size
    codes = codes.reshape(N, count, block_size).double()
    if zeros is None:
        middle: Tensor = torch.tensor(float(1 << (bits - 1)), dtype=torch.float64)
    elif zeros.is_floating_point():
        middle = zeros.reshape(N, count, 1).double()
    else:
        middle = _unpacked(zeros.reshape(N, -1), bits)[:, :count].reshape(N, count, 1).double()
    weight = ((codes - middle) * scales.reshape(N, count, 1).double()).reshape(N, -1)[:, :K]
    made = a @ weight.to(a.dtype).mT
    return made if bias is None else made + bias


def _unpacked(codes: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return codes
    return torch.stack([codes & 15, codes >> 4], -1).flatten(-2)


@define("QGemm", _CONTRACTS, domain=MICROSOFT)
def _qgemm(
    a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor,
    c: Tensor | None = None, scale: Tensor | None = None, zero: Tensor | None = None,
    alpha: float = 1.0, transA: int = 0, transB: int = 0,  # noqa: N803
) -> Tensor:  # fmt: skip
    left, right = _shifted(a, a_zero, -2), _shifted(b, b_zero, 0 if transB else -1)
    made = (left.mT if transA else left) @ (right.mT if transB else right)
    made = made if c is None else made + c.double() / (alpha if alpha else 1.0)
    made = made * alpha * (a_scale.double() * b_scale.double())
    if scale is None:
        return made.to(_wide(a_scale))
    return encoded(made, scale.double(), zero, a.dtype if zero is None else zero.dtype)
