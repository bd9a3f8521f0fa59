"""Ops on integers that stand for numbers, each with a scale and a zero point."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.onnx_ops.op_table import MICROSOFT, define, dtype_numbered
from dumpcmp.replay.onnx_ops.pooling import average_pool, max_pool
from dumpcmp.replay.onnx_ops.products import conv
from dumpcmp.replay.unreplayable import Unreplayable

_MOVES, _CHOOSES = FunctionKind.MOVES, FunctionKind.CHOOSES
_CONTRACTS, _EACH = FunctionKind.CONTRACTS, FunctionKind.ELEMENTWISE
_define = partial(define, by_shapes=True)


def _along(one: Tensor | None, x: Tensor, axis: int, block_size: int = 0) -> Tensor | float:
    """A scale or zero point as it lies beside `x`: for all, along a dim, or for blocks of it."""
    if one is None:
        return 0.0
    if block_size:
        axis %= x.ndim
        return one.repeat_interleave(block_size, axis).narrow(axis, 0, x.shape[axis])
    if one.numel() == 1:
        return one.reshape(())
    if one.ndim != 1:
        raise Unreplayable("this form of it is not known")
    return one.reshape(*[-1 if dim == axis % x.ndim else 1 for dim in range(x.ndim)])


def _wide(*given: Tensor | None) -> torch.dtype:
    floats = [each.dtype for each in given if each is not None and each.is_floating_point()]
    return torch.float64 if torch.float64 in floats else torch.float32


def decoded(
    x: Tensor, scale: Tensor, zero: Tensor | None, axis: int = 1, block_size: int = 0
) -> Tensor:
    """The numbers that codes stand for."""
    dtype = _wide(scale)
    at = _along(zero, x, axis, block_size)
    shifted = x.to(dtype) - (at.to(dtype) if isinstance(at, Tensor) else at)
    return shifted * _along(scale.to(dtype), x, axis, block_size)


def encoded(
    x: Tensor, scale: Tensor, zero: Tensor | None, dtype: torch.dtype, axis: int = 1,
    block_size: int = 0,
) -> Tensor:  # fmt: skip
    """The codes of the nearest levels."""
    at = _along(zero, x, axis, block_size)
    wide = x.to(_wide(x, scale))
    levels = wide / _along(scale.to(wide.dtype), x, axis, block_size)
    if dtype.is_floating_point:
        return levels.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)
    levels = torch.round(levels) + (at.to(wide.dtype) if isinstance(at, Tensor) else at)
    bounds = torch.iinfo(dtype)
    return levels.clamp(bounds.min, bounds.max).to(dtype)


@_define("DequantizeLinear", _EACH)
@_define("DequantizeLinear", _EACH, domain=MICROSOFT)
def _dequantize(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:  # fmt: skip
    del output_dtype
    return decoded(x, scale, zero, axis, block_size)


@_define("QuantizeLinear", _CHOOSES)
@_define("QuantizeLinear", _CHOOSES, domain=MICROSOFT)
def _quantize(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0, precision: int = 0, saturate: int = 1,
) -> Tensor:  # fmt: skip
    del precision, saturate
    dtype = dtype_numbered(output_dtype) if output_dtype else torch.uint8
    return encoded(x, scale, zero, dtype if zero is None else zero.dtype, axis, block_size)


@_define("DynamicQuantizeLinear", _CHOOSES)
def dynamically_encoded(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes with a scale and a zero point that fit the smallest and the largest number."""
    least, most = x.min().clamp(max=0.0), x.max().clamp(min=0.0)
    scale = (most - least) / 255
    zero = torch.round((-least / scale).clamp(0, 255)).to(torch.uint8)
    return encoded(x, scale, zero, torch.uint8), scale, zero


def without_zero(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """Codes without their zero point, in numbers that hold all of their products."""
    wide = x.to(torch.float64)
    if zero is None:
        return wide
    if zero.numel() == 1:
        return wide - zero.reshape(()).double()
    shape = [1] * x.ndim
    shape[axis] = -1
    return wide - zero.double().reshape(shape)


@_define("MatMulInteger", _MOVES)
def _matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    return (without_zero(a, a_zero, -2) @ without_zero(b, b_zero, -1)).to(torch.int32)


@_define("ConvInteger", _MOVES)
def _conv_integer(
    x: Tensor, weight: Tensor, x_zero: Tensor | None = None, weight_zero: Tensor | None = None,
    **told: Any,
) -> Tensor:  # fmt: skip
    made = conv(without_zero(x, x_zero, 1), without_zero(weight, weight_zero, 0), **told)
    return made.to(torch.int32)


@_define("MatMulIntegerToFloat", _CONTRACTS, domain=MICROSOFT)
def _matmul_integer_to_float(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, a_zero: Tensor | None = None,
    b_zero: Tensor | None = None, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    dtype = _wide(a_scale)
    made = without_zero(a, a_zero, -2) @ without_zero(b, b_zero, -1)
    made = (made * (a_scale * b_scale).double()).to(dtype)
    return made if bias is None else made + bias


@_define("DynamicQuantizeMatMul", _CONTRACTS, domain=MICROSOFT)
def _dynamic_matmul(
    a: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    codes, scale, zero = dynamically_encoded(a)
    return _matmul_integer_to_float(codes, b, scale.to(a.dtype), b_scale, zero, b_zero, bias)


# Codes of codes: sums of products are exact, and are brought to the levels of the output in the
# dtype of the scales. In float32 that is done in the order in which ONNX Runtime does it, so that
# what lies just between two levels is rounded to the same one.


def _at_levels(sums: Tensor, factor: Tensor, zero: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The codes of whole numbers that each are worth `factor` levels."""
    levels = torch.round(sums.to(factor.dtype) * factor)
    levels = levels if zero is None else levels + zero.to(factor.dtype)
    bounds = torch.iinfo(dtype)
    return levels.clamp(bounds.min, bounds.max).to(dtype)


def _from_zero(levels: Tensor, zero: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The codes of levels that are counted from the zero point, before they are rounded."""
    levels = torch.round(levels if zero is None else levels + zero.to(levels.dtype))
    bounds = torch.iinfo(dtype)
    return levels.clamp(bounds.min, bounds.max).to(dtype)


@_define("QLinearMatMul", _CHOOSES)
def _qlinear_matmul(
    a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor,
    scale: Tensor, zero: Tensor,
) -> Tensor:  # fmt: skip
    sums = without_zero(a, a_zero, -2) @ without_zero(b, b_zero, -1)
    return _at_levels(sums, a_scale * b_scale / scale, zero, zero.dtype)


@_define("QLinearConv", _CHOOSES)
@_define("QLinearConv", _CHOOSES, domain=MICROSOFT)
def _qlinear_conv(
    x: Tensor, x_scale: Tensor, x_zero: Tensor, weight: Tensor, weight_scale: Tensor,
    weight_zero: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None = None,
    channels_last: int = 0, **told: Any,
) -> Tensor:  # fmt: skip
    seen = x.movedim(-1, 1) if channels_last else x
    numbers = None if bias is None else bias.double()
    sums = conv(
        without_zero(seen, x_zero, 1), without_zero(weight, weight_zero, 0), numbers, **told
    )
    by_channel = weight_scale.reshape(1, -1, *[1] * (sums.ndim - 2))
    found = _at_levels(sums, x_scale * by_channel / scale, zero, zero.dtype)
    return found.movedim(1, -1) if channels_last else found


@_define("QLinearMul", _CHOOSES, domain=MICROSOFT)
def _qlinear_mul(
    a: Tensor, a_scale: Tensor, a_zero: Tensor | None, b: Tensor, b_scale: Tensor,
    b_zero: Tensor | None, scale: Tensor, zero: Tensor | None = None,
) -> Tensor:  # fmt: skip
    product = without_zero(a, a_zero, 0) * without_zero(b, b_zero, 0)
    return _from_zero(product.to(scale.dtype) * (a_scale * b_scale / scale), zero, a.dtype)


@_define("QLinearAdd", _CHOOSES, domain=MICROSOFT)
def _qlinear_add(
    a: Tensor, a_scale: Tensor, a_zero: Tensor | None, b: Tensor, b_scale: Tensor,
    b_zero: Tensor | None, scale: Tensor, zero: Tensor | None = None,
) -> Tensor:  # fmt: skip
    one = without_zero(a, a_zero, 0).to(scale.dtype) * (a_scale / scale)
    other = without_zero(b, b_zero, 0).to(scale.dtype) * (b_scale / scale)
    return _from_zero(one + other, zero, a.dtype)


def _single(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(
        x: Tensor, x_scale: Tensor, x_zero: Tensor | None, scale: Tensor,
        zero: Tensor | None = None, **told: Any,
    ) -> Tensor:  # fmt: skip
        made = compute(decoded(x, x_scale.double(), x_zero), **told)
        return encoded(made, scale.double(), zero, x.dtype)

    return run


_define("QLinearSigmoid", _CHOOSES, domain=MICROSOFT)(_single(torch.sigmoid))
_define("QLinearLeakyRelu", _CHOOSES, domain=MICROSOFT)(
    _single(lambda x, alpha=0.01: F.leaky_relu(x, alpha))
)


def _global_average(x: Tensor, channels_last: int = 0) -> Tensor:
    dims = tuple(range(1, x.ndim - 1)) if channels_last else tuple(range(2, x.ndim))
    return x.mean(dims, keepdim=True)


_define("QLinearGlobalAveragePool", _CHOOSES, domain=MICROSOFT)(_single(_global_average))


@_define("QLinearSoftmax", _CHOOSES, domain=MICROSOFT)
def _qlinear_softmax(
    x: Tensor, x_scale: Tensor, x_zero: Tensor | None, scale: Tensor, zero: Tensor | None = None,
    axis: int = -1, opset: int = 13,
) -> Tensor:  # fmt: skip
    """ONNX Runtime has a whole number of levels up to 1, and rounds halves up."""
    axis %= x.ndim
    seen = decoded(x, x_scale.double(), x_zero)
    shares = seen.softmax(axis) if opset >= 13 else seen.flatten(axis).softmax(-1).reshape(x.shape)
    levels = torch.floor(shares * torch.floor(1 / scale.double()) + 0.5)
    levels = levels if zero is None else levels + zero.double()
    bounds = torch.iinfo(x.dtype)
    return levels.clamp(bounds.min, bounds.max).to(x.dtype)


def _quantised_average(x: Tensor, channels_last: int = 0, **windows: Any) -> Tensor:
    image = x.movedim(-1, 1) if channels_last else x
    made = average_pool(image, **windows)
    return made.movedim(1, -1) if channels_last else made


_define("QLinearAveragePool", _CHOOSES, domain=MICROSOFT)(_single(_quantised_average))


@_define("QLinearWhere", _CHOOSES, domain=MICROSOFT)
def _qlinear_where(
    condition: Tensor, x: Tensor, x_scale: Tensor, x_zero: Tensor | None, y: Tensor,
    y_scale: Tensor, y_zero: Tensor | None, scale: Tensor, zero: Tensor | None,
) -> Tensor:  # fmt: skip
    one, other = decoded(x, x_scale.double(), x_zero), decoded(y, y_scale.double(), y_zero)
    return encoded(torch.where(condition, one, other), scale.double(), zero, x.dtype)


@_define("NhwcMaxPool", _MOVES, domain=MICROSOFT)
def _nhwc_max_pool(x: Tensor, **windows: Any) -> Tensor:
    return max_pool(x.movedim(-1, 1), **windows)[0].movedim(1, -1)


@_define("MatMulInteger16", _MOVES, domain=MICROSOFT)
def _matmul_integer16(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() @ b.double()).to(torch.int32)


@_define("GatherBlockQuantized", _EACH, domain=MICROSOFT)
def _gather_block_quantised(
    codes: Tensor, at: Tensor, scales: Tensor, zeros: Tensor | None = None, gather_axis: int = 0,
    quantize_axis: int = 1, block_size: int = 128, bits: int = 4,
) -> Tensor:  # fmt: skip
    if codes.dtype == torch.uint8:  # two codes a byte, or one; the middle is zero
        codes = _unpacked(codes, bits)
        middle = torch.tensor(1 << (bits - 1), dtype=torch.uint8)
        zeros = middle.expand(scales.shape) if zeros is None else _unpacked(zeros, bits)
        zeros = zeros.narrow(-1, 0, scales.shape[-1])
    whole = decoded(codes, scales, zeros, quantize_axis, block_size)
    rows = at.long() % whole.shape[gather_axis]
    found = whole.index_select(gather_axis, rows.reshape(-1))
    before, after = whole.shape[:gather_axis], whole.shape[gather_axis + 1 :]
    return found.reshape(*before, *at.shape, *after) if gather_axis >= 0 else found


@_define("QLinearConcat", _CHOOSES, domain=MICROSOFT)
def _qlinear_concat(scale: Tensor, zero: Tensor, *given: Tensor, axis: int) -> Tensor:
    triples = zip(given[::3], given[1::3], given[2::3], strict=True)
    parts = [decoded(x, own.double(), at) for x, own, at in triples]
    return encoded(torch.cat(parts, axis), scale.double(), zero, zero.dtype)


@_define("MatMulNBits", _CONTRACTS, domain=MICROSOFT)
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


@_define("QGemm", _CHOOSES, domain=MICROSOFT)
def _qgemm(
    a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor,
    c: Tensor | None, scale: Tensor, zero: Tensor, alpha: float = 1.0, transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Tensor:  # fmt: skip
    sums = _sums_of_gemm(a, a_zero, b, b_zero, c, transA, transB)
    return _at_levels(sums, alpha * a_scale * b_scale / scale, zero, zero.dtype)


@_define("QGemmToFloat", _CONTRACTS, domain=MICROSOFT)
def _qgemm_to_float(
    a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor,
    c: Tensor | None = None, alpha: float = 1.0, transA: int = 0, transB: int = 0,  # noqa: N803
) -> Tensor:  # fmt: skip
    """A QGemm without levels of its output, which is of floats: another kind of arithmetic."""
    sums = _sums_of_gemm(a, a_zero, b, b_zero, c, transA, transB)
    return (sums * (alpha * a_scale * b_scale).double()).to(_wide(a_scale))


def _sums_of_gemm(
    a: Tensor, a_zero: Tensor, b: Tensor, b_zero: Tensor, c: Tensor | None, turns_a: int,
    turns_b: int,
) -> Tensor:  # fmt: skip
    left, right = without_zero(a, a_zero, -2), without_zero(b, b_zero, 0 if turns_b else -1)
    sums = (left.mT if turns_a else left) @ (right.mT if turns_b else right)
    return sums if c is None else sums + c.double()
