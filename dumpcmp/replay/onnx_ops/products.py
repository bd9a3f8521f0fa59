"""Matrix products and convolutions, and those with what ONNX Runtime fuses to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.onnx_ops.op_table import MICROSOFT, also, define
from dumpcmp.replay.unreplayable import Unreplayable

_CONTRACTS, _COMPOSES = FunctionKind.CONTRACTS, FunctionKind.COMPOSES

also("MatMul", torch.matmul, _CONTRACTS, like="matmul")


@define("Einsum", _CONTRACTS)
def _einsum(*given: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *given)


@define("Gemm", _CONTRACTS)
def gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0,  # noqa: N803 - the names of attributes
) -> Tensor:  # fmt: skip
    """``alpha * A @ B + beta * C``, each factor transposed first if it says so."""
    product = (a.mT if transA else a) @ (b.mT if transB else b)
    product = product if alpha == 1.0 else alpha * product
    return product if c is None else product + (c if beta == 1.0 else beta * c)


@define("FusedMatMul TransposeMatMul", _CONTRACTS, domain=MICROSOFT)
def _fused_matmul(
    a: Tensor, b: Tensor, alpha: float = 1.0, transA: int = 0, transB: int = 0,  # noqa: N803
    transBatchA: int = 0, transBatchB: int = 0,  # noqa: N803
) -> Tensor:  # fmt: skip
    a, b = (x.movedim(0, -2) if batch else x for x, batch in ((a, transBatchA), (b, transBatchB)))
    return alpha * ((a.mT if transA else a) @ (b.mT if transB else b))


def activation(name: str, *parameters: float) -> Callable[[Tensor], Tensor]:
    """What is fused behind a product, by its name."""
    first = parameters[0] if parameters else None
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "": lambda x: x,
        "Relu": torch.relu,
        "Tanh": torch.tanh,
        "Sigmoid": torch.sigmoid,
        "LeakyRelu": lambda x: F.leaky_relu(x, 0.01 if first is None else first),
        "Clip": lambda x: torch.clamp(x, *parameters[:2]),
        "HardSigmoid": lambda x: torch.clamp(parameters[0] * x + parameters[1], 0.0, 1.0),
        "Gelu": F.gelu,
        "QuickGelu": lambda x: x * torch.sigmoid(1.702 * x),
        "Silu": F.silu,
        "HardSwish": F.hardswish,
        "Elu": lambda x: F.elu(x, 1.0 if first is None else first),
    }
    if name not in known:
        raise Unreplayable(f"what it does as {name} is not known")
    return known[name]


@define("FusedGemm", _COMPOSES, domain=MICROSOFT)
def _fused_gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None, activation: str = "",
    activation_alpha: float = 0.0, activation_beta: float = 0.0, activation_gamma: float = 0.0,
    **told: Any,
) -> Tensor:  # fmt: skip
    del activation_gamma
    return _behind(activation, activation_alpha, activation_beta)(gemm(a, b, c, **told))


def _behind(name: str, *parameters: float) -> Callable[[Tensor], Tensor]:
    return activation(name, *parameters)


_SPATIAL: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_OUTWARD: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


def padded(
    x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    pads: Sequence[int], auto_pad: str, value: float = 0.0,
) -> Tensor:  # fmt: skip
    """`x` with the border that a window of `kernel` is to see."""
    ndim = len(kernel)
    sides = list(pads) or [0] * 2 * ndim
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        sides = same_pads(x.shape[2:], kernel, strides, dilations, auto_pad)
    around = [side for dim in reversed(range(ndim)) for side in (sides[dim], sides[dim + ndim])]
    return F.pad(x, around, value=value) if any(around) else x


def same_pads(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    auto_pad: str,
) -> list[int]:  # fmt: skip
    """The border with which the output has one element for each stride of the input."""
    befores, afters = [], []
    for size, window, step, gap in zip(sizes, kernel, strides, dilations, strict=True):
        whole = max(0, (-(-size // step) - 1) * step + (window - 1) * gap + 1 - size)
        small, large = whole // 2, whole - whole // 2
        befores.append(small if auto_pad == "SAME_UPPER" else large)
        afters.append(large if auto_pad == "SAME_UPPER" else small)
    return [*befores, *afters]


@define("Conv", _CONTRACTS)
def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (), group: int = 1, kernel_shape: Sequence[int] = (),
    pads: Sequence[int] = (), strides: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    """A convolution over any border."""
    ndim = weight.ndim - 2
    ones = [1] * ndim
    strides, dilations = list(strides) or ones, list(dilations) or ones
    kernel = list(kernel_shape) or list(weight.shape[2:])
    seen = padded(x, kernel, strides, dilations, pads, auto_pad)
    return _SPATIAL[ndim](seen, weight, bias, strides, 0, dilations, group)


@define("FusedConv NhwcFusedConv", _COMPOSES, domain=MICROSOFT)
def _fused_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, added: Tensor | None = None,
    activation: str = "", activation_params: Sequence[float] = (), **told: Any,
) -> Tensor:  # fmt: skip
    made = conv(x, weight, bias, **told)
    made = made if added is None else made + added
    return _behind(activation, *activation_params)(made)


@define("ConvTranspose", _CONTRACTS)
def _conv_transpose(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, auto_pad: str = "NOTSET",
    dilations: Sequence[int] = (), group: int = 1, kernel_shape: Sequence[int] = (),
    output_padding: Sequence[int] = (), output_shape: Sequence[int] = (),
    pads: Sequence[int] = (), strides: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    del kernel_shape
    ndim = weight.ndim - 2
    ones = [1] * ndim
    strides, dilations = list(strides) or ones, list(dilations) or ones
    sides = list(pads) or [0] * 2 * ndim
    if output_shape or auto_pad not in ("NOTSET", "VALID"):
        raise Unreplayable("this form of it is not known")
    whole = _OUTWARD[ndim](x, weight, bias, strides, 0, 0, group, dilations)
    more = list(output_padding) or [0] * ndim
    for dim in range(ndim):
        size = whole.shape[2 + dim] - sides[dim] - sides[dim + ndim] + more[dim]
        beyond = size + sides[dim] - whole.shape[2 + dim]
        if beyond > 0:  # where no window reaches there is the bias alone
            room = whole.new_zeros((*whole.shape[: 2 + dim], beyond, *whole.shape[3 + dim :]))
            if bias is not None:
                room = room + bias.reshape(-1, *[1] * ndim)
            whole = torch.cat([whole, room], 2 + dim)
        whole = whole.narrow(2 + dim, sides[dim], size)
    return whole


@define("Det", _COMPOSES)
def _det(x: Tensor) -> Tensor:
    return torch.as_tensor(torch.linalg.det(x))


@define("Inverse", _COMPOSES, domain=MICROSOFT)
def _inverse(x: Tensor) -> Tensor:
    return torch.as_tensor(torch.linalg.inv(x))
