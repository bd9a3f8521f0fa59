"""Ops that compute element by element."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.onnx_ops.op_table import MICROSOFT, also, define, dtype_numbered, wide_for
from dumpcmp.replay.unreplayable import Unreplayable

_MOVES, _EACH, _ADDS = FunctionKind.MOVES, FunctionKind.ELEMENTWISE, FunctionKind.ADDS
_CHOOSES, _COMPOSES = FunctionKind.CHOOSES, FunctionKind.COMPOSES

_MOVING = "Abs Neg Ceil Floor Sign"
_CURVED = """
    Exp Log Sqrt Reciprocal Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh Erf Sigmoid
"""
for _names, _kind in ((_MOVING, _MOVES), (_CURVED, _EACH)):
    for _name in _names.split():
        also(_name, getattr(torch, _name.lower()), _kind, like=_name.lower())
also("Round", torch.round, _MOVES, like="round")
also("Relu", torch.relu, _MOVES, like="relu")
also("Mish", F.mish, _EACH, like="mish")
also("HardSwish", F.hardswish, _EACH, like="hardswish")
also("Softsign", F.softsign, _EACH, like="softsign")
also("IsNaN", torch.isnan, _MOVES, like="isnan")
also("Not", torch.logical_not, _MOVES, like="logical_not")
also("And", torch.logical_and, _MOVES, like="logical_and")
also("Or", torch.logical_or, _MOVES, like="logical_or")
also("Xor", torch.logical_xor, _MOVES, like="logical_xor")
also("BitwiseAnd", torch.bitwise_and, _MOVES, like="bitwise_and")
also("BitwiseOr", torch.bitwise_or, _MOVES, like="bitwise_or")
also("BitwiseXor", torch.bitwise_xor, _MOVES, like="bitwise_xor")
also("BitwiseNot", torch.bitwise_not, _MOVES, like="bitwise_not")
also("Add", torch.add, _ADDS, like="add")
also("Sub", torch.sub, _ADDS, like="sub")
also("Mul", torch.mul, _EACH, like="mul")
also("Pow", torch.pow, _EACH, like="pow")
also("Equal", torch.eq, _CHOOSES, like="eq")
also("Less", torch.lt, _CHOOSES, like="lt")
also("LessOrEqual", torch.le, _CHOOSES, like="le")
also("Greater", torch.gt, _CHOOSES, like="gt")
also("GreaterOrEqual", torch.ge, _CHOOSES, like="ge")
also("Where", torch.where, _MOVES, like="where")


@define("Identity", _MOVES, like="clone")
def _identity(x: Tensor) -> Tensor:
    return x.clone()


@define("Div", _EACH, like="div")
def _div(a: Tensor, b: Tensor) -> Tensor:
    if a.is_floating_point() or b.is_floating_point():
        return a / b
    return torch.div(a, b, rounding_mode="trunc")


@define("Mod", _COMPOSES)
def _mod(a: Tensor, b: Tensor, fmod: int = 0) -> Tensor:
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


def _folded(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def run(*given: Tensor) -> Tensor:
        return reduce(combine, given)

    return run


also("Max", _folded(torch.maximum), _MOVES)
also("Min", _folded(torch.minimum), _MOVES)
also("Sum", _folded(operator.add), _ADDS)


@define("Mean", _ADDS)
def _mean(*given: Tensor) -> Tensor:
    return reduce(operator.add, given) / len(given)


@define("BitShift", _MOVES)
def _bit_shift(x: Tensor, by: Tensor, direction: str) -> Tensor:
    return x << by if direction == "LEFT" else x >> by


@define("IsInf", _MOVES)
def _is_inf(x: Tensor, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    found = torch.zeros_like(x, dtype=torch.bool)
    found = found | torch.isposinf(x) if detect_positive else found
    return found | torch.isneginf(x) if detect_negative else found


@define("Clip", _MOVES)
def _clip(x: Tensor, least: Tensor | None = None, most: Tensor | None = None) -> Tensor:
    if least is not None:
        x = torch.maximum(x, least)
    return x if most is None else torch.minimum(x, most)


@define("LeakyRelu", _EACH)
def _leaky_relu(x: Tensor, alpha: float = 0.01) -> Tensor:
    return F.leaky_relu(x, alpha)


@define("PRelu", _EACH)
def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


@define("Elu", _EACH)
def _elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return F.elu(x, alpha)


@define("Celu", _EACH)
def _celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return F.celu(x, alpha)


@define("Selu", _EACH)
def _selu(
    x: Tensor, alpha: float = 1.67326319217681884765625, gamma: float = 1.0507010221481323
) -> Tensor:
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


@define("HardSigmoid", _EACH)
def _hard_sigmoid(x: Tensor, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    if alpha == 0.16666667:  # a sixth, as float32 has it
        alpha = 1 / 6
    return torch.clamp(alpha * x + beta, 0.0, 1.0)


@define("Softplus", _EACH)
def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


@define("ThresholdedRelu", _MOVES)
def _thresholded_relu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return torch.where(x > alpha, x, torch.zeros_like(x))


@define("Shrink", _EACH)
def _shrink(x: Tensor, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    zeros = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zeros))


@define("Swish", _EACH)
def _swish(x: Tensor, alpha: float = 1.0) -> Tensor:
    return x * torch.sigmoid(alpha * x)


@define("QuickGelu", _EACH, domain=MICROSOFT)
def _quick_gelu(x: Tensor, alpha: float = 1.702) -> Tensor:
    return x * torch.sigmoid(alpha * x)


@define("Gelu", _EACH)
@define("Gelu", _EACH, domain=MICROSOFT)
def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return F.gelu(x, approximate=approximate)


@define("FastGelu", _EACH, domain=MICROSOFT)
def _fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


@define("BiasGelu", _EACH, domain=MICROSOFT)
def _bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


@define("BiasAdd", _ADDS, domain=MICROSOFT)
def _bias_add(x: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    return x + bias + skip


@define("BiasSplitGelu", _EACH, domain=MICROSOFT)
def _bias_split_gelu(x: Tensor, bias: Tensor) -> Tensor:
    first, second = (x + bias).chunk(2, -1)
    return first * F.gelu(second)


@define("Cast", _MOVES, like="to")
def _cast(x: Tensor, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    del saturate, round_mode
    return x.to(wide_for(dtype_numbered(to), x))


@define("CastLike", _MOVES)
def _cast_like(x: Tensor, other: Tensor, saturate: int = 1, round_mode: str = "up") -> Tensor:
    del saturate, round_mode
    return x.to(other.dtype)


@define("Dropout", _MOVES)
def _dropout(x: Tensor, *given: Any, seed: int = 0) -> tuple[Tensor, Tensor]:
    del seed
    if len(given) > 1 and given[1] is not None and not given[1].is_meta and bool(given[1]):
        raise Unreplayable("it draws random numbers")
    return x.clone(), torch.ones_like(x, dtype=torch.bool)
