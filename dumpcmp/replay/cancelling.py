"""How large the terms of an op's sums are beside what is left of them: its condition."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dumpcmp.nouns.op_names import OpSet, OpTable
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.replay.arguments import CallArguments
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.listed import ReplayFunction

_FACTORS = ("alpha", "beta", "value", "other")
SUMMED = (FunctionKind.ADDS, FunctionKind.CONTRACTS, FunctionKind.SUMS)
_OUTPUT = "output.0"

# Of one element, and off by no more than rounding of what they give out.
_RELATIVE = OpSet(
    """
    mul multiply div divide true_divide sqrt rsqrt reciprocal square leaky_relu prelu
    _prelu_kernel deg2rad rad2deg ldexp outer hypot
    """
)
_ONCE = OpSet("mul multiply add sub subtract neg negative")
_SHORT = frozenset((torch.bfloat16, torch.float16))
_POWERS = OpSet("pow float_power")
_EXPONENTIAL = OpSet("exp exp2 expm1 sinh cosh sigmoid special_expit")


_POINTWISE = _RELATIVE | _EXPONENTIAL | _POWERS
_SINGLE = _RELATIVE - {"rsqrt"}


def terms_of(
    function: ReplayFunction, arguments: CallArguments, exact: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """The sums of the terms' absolute values, by slot, where they can be told; in `dtype`.

    They are what the same function gives on absolute values, since it is linear in them. Of one
    that computes element by element it is by what rounding of its input moves the output, and
    nothing where that is the output itself.
    """
    if function.kind is FunctionKind.ELEMENTWISE:
        return _pointwise(function, arguments, exact)
    if function.kind not in SUMMED:
        return {}
    run = _ADDITIONS.get(function.name, function.run)
    absolute = _absolute(arguments, dtype, function.kind is FunctionKind.ADDS)
    if function.changes_first:
        absolute = absolute.with_first(lambda first: first.clone())
    found = dict(slots_of("output", run(*absolute.args, **absolute.kwargs)))
    return {slot: found[slot].abs() for slot in exact if slot in found}


def is_pointwise(function: ReplayFunction) -> bool:
    """Whether each element is off by no more than rounding of itself and of its own terms."""
    return function.kind is FunctionKind.ADDS or function.name in _POINTWISE


def is_single(function: ReplayFunction) -> bool:
    """Whether it is one operation of the machine, which rounds once, on any device."""
    return function.name in _SINGLE or function.kind is FunctionKind.ADDS


def is_nearest(function: ReplayFunction, arguments: CallArguments) -> bool:
    """Whether it has one right result in a short dtype, the nearest, on any device.

    A product or sum of two short numbers is all but exact in float32. Of a Python number that is
    not so: some devices round it first.
    """
    dtypes = {leaf.dtype for leaf in arguments.tensors()}
    plain = not arguments.kwargs and all(isinstance(leaf, Tensor) for leaf in arguments.leaves())
    return function.name in _ONCE and plain and len(dtypes) == 1 and dtypes <= _SHORT


def _pointwise(
    function: ReplayFunction, arguments: CallArguments, exact: dict[str, Tensor]
) -> dict[str, Tensor]:
    output = exact.get(_OUTPUT)
    if function.name in _RELATIVE or output is None:
        return {}
    if function.name in _EXPONENTIAL:
        inputs = [t for t in arguments.tensors() if t.is_floating_point() or t.is_complex()]
        return {_OUTPUT: output.abs() * inputs[0].abs()} if inputs else {}
    return _power(arguments, output) if function.name in _POWERS else {}


def _power(arguments: CallArguments, output: Tensor) -> dict[str, Tensor]:
    base, exponent = (torch.as_tensor(operand) for operand in arguments.args[:2])
    steepness = (exponent.abs() * base.abs().clamp_min(1e-300).log().abs()).to(torch.float64)
    return {_OUTPUT: output.abs() * steepness}


def _lerp(start: Tensor, end: Tensor, weight: Any) -> Tensor:
    return torch.as_tensor(start + weight * (start + end))


_ADDITIONS: OpTable[Callable[..., Any]] = OpTable({
    "sub": torch.add, "subtract": torch.add, "rsub": torch.add, "lerp": _lerp,
})  # fmt: skip


def _absolute(arguments: CallArguments, dtype: torch.dtype, operands: bool) -> CallArguments:
    def change(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            return leaf.abs().to(dtype)
        if isinstance(leaf, torch.dtype) and (leaf.is_floating_point or leaf.is_complex):
            return dtype
        return abs(leaf) if isinstance(leaf, (float, complex)) else leaf

    found = arguments.mapped(change)
    kwargs = {
        word: abs(value) if word in _FACTORS and type(value) is int else value
        for word, value in found.kwargs.items()
    }
    args = tuple(abs(value) if operands and type(value) is int else value for value in found.args)
    return CallArguments(args, kwargs)


def norm_condition(function: ReplayFunction, arguments: CallArguments, output: Tensor) -> float:
    """By what the terms of a normalisation are larger than what it gives out.

    It subtracts a mean from what may be far from zero, and adds a bias.
    """
    named = norm_arguments(function, arguments)
    if not named:
        return 1.0
    x, bias = named["input"], named.get("bias")
    if function.name.endswith("batch_norm") and not named.get("training", named.get("train")):
        return _shifted(named, output)
    groups = groups_of(function.name, x, named)
    spread = groups.std(1, unbiased=False, keepdim=True)
    spread = torch.sqrt(spread.square() + float(named.get("eps", 1e-5)))
    centred = torch.linalg.vector_norm((groups - groups.mean(1, keepdim=True)) / spread)
    own = float(torch.linalg.vector_norm(groups / spread) / centred) if float(centred) else 1.0
    return max(1.0, own) * _beside(output, as_channel(bias, function.name, output))


def moments_noise(
    function: ReplayFunction, arguments: CallArguments, output: Tensor, dtype: torch.dtype
) -> float:
    """What it makes that a GPU keeps mean and deviation of each group in the dtype of the run."""
    named = norm_arguments(function, arguments)
    groups = groups_of(function.name, named["input"], named)
    spread = torch.sqrt(groups.var(1, unbiased=False) + float(named.get("eps", 1e-5)))
    shift = groups.mean(1) / spread
    rounded = torch.finfo(dtype).eps / 2 * torch.sqrt(1 + shift.square())
    left = torch.linalg.vector_norm(output) / math.sqrt(max(1, output.numel()))
    return float(rounded.square().mean().sqrt() / left.clamp(min=1.0)) if groups.numel() else 0.0


_LAYER = ("input", "normalized_shape", "weight", "bias", "eps")
_GROUP = ("input", "num_groups", "weight", "bias", "eps")
_MOMENTS = ("input", "running_mean", "running_var", "weight", "bias")
_BATCH = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
_NORMS: OpTable[tuple[str, ...]] = OpTable(
    {
        "layer_norm": _LAYER,
        "native_layer_norm": _LAYER,
        "group_norm": _GROUP,
        "native_group_norm": ("input", "weight", "bias", "N", "C", "HxW", "num_groups", "eps"),
        "instance_norm": (*_MOMENTS, "use_input_stats", "momentum", "eps"),
        "batch_norm": (*_MOMENTS, "training", "momentum", "eps"),
        "native_batch_norm": _BATCH,
        "_native_batch_norm_legit": _BATCH,
        "cudnn_batch_norm": _BATCH,
    }
)
# By the dispatcher, and by the functions of torch that call it at once.
_WEIGHTS_FIRST: OpTable[tuple[str, ...]] = OpTable(
    {"batch_norm": _BATCH, "instance_norm": (*_BATCH[:5], "use_input_stats", "momentum", "eps")}
)


def norm_arguments(function: ReplayFunction, arguments: CallArguments) -> dict[str, Any]:
    """What a normalisation was given, by the names of its arguments; of others nothing."""
    words = _NORMS.get(function.name)
    if function.run not in (F.batch_norm, F.instance_norm):
        words = _WEIGHTS_FIRST.get(function.name, words)
    if words is None:
        return {}
    return dict(zip(words, arguments.args, strict=False)) | arguments.kwargs


def groups_of(name: str, x: Tensor, named: dict[str, Any]) -> Tensor:
    """The elements of `x` that are normalised together, as rows."""
    if name.endswith("layer_norm"):
        return x.reshape(-1, math.prod(named["normalized_shape"]))
    if name.endswith("group_norm"):
        return x.reshape(x.shape[0] * int(named["num_groups"]), -1)
    if name == "instance_norm":
        return x.reshape(x.shape[0] * x.shape[1], -1)
    return x.unsqueeze(0) if x.ndim < 2 else x.transpose(0, 1).reshape(x.shape[1], -1)


def as_channel(bias: Any, name: str, output: Tensor) -> Tensor | None:
    """`bias`, or a weight, as it lies beside the output of a normalisation."""
    if not isinstance(bias, Tensor):
        return None
    if name.endswith("layer_norm"):
        return bias
    return bias.reshape(-1, *(1,) * (output.ndim - 2))


def _beside(output: Tensor, bias: Tensor | None) -> float:
    """By what the output without its bias, and the bias, are larger than the output."""
    if bias is None:
        return 1.0
    norm = float(torch.linalg.vector_norm(output))
    terms = float(torch.linalg.vector_norm((output - bias).abs() + bias.abs()))
    return max(1.0, terms / norm) if norm else 1.0


def _shifted(named: dict[str, Any], output: Tensor) -> float:
    """Of a batch norm with known moments, which is a product and a sum."""
    moments = [as_channel(named.get(w), "batch", output) for w in ("running_mean", "running_var")]
    if any(m is None for m in moments):
        return 1.0
    mean, var = moments
    assert mean is not None and var is not None
    weight = as_channel(named.get("weight"), "batch", output)
    scale = torch.rsqrt(var + float(named.get("eps", 1e-5)))
    scale = scale if weight is None else scale * weight
    bias = as_channel(named.get("bias"), "batch", output)
    terms = named["input"].abs() * scale.abs() + (mean * scale).abs()
    terms = terms if bias is None else terms + bias.abs()
    norm = float(torch.linalg.vector_norm(output))
    return max(1.0, float(torch.linalg.vector_norm(terms)) / norm) if norm else 1.0
