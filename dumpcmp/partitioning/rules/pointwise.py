"""Ops that treat every element alone, with broadcasting."""

from collections.abc import Sequence

from dumpcmp.partitioning.configuration import TensorInfo
from dumpcmp.partitioning.rules.ruling import (
    MASK,
    POSITIVE,
    UNIT,
    Annotator,
    Arguments,
    Domain,
    NoRule,
    Ruling,
    letters,
    said,
    words,
)

_NAMES = words(
    "abs absolute add addcdiv addcmul alias bitwise_and bitwise_not bitwise_or bitwise_xor "
    "bernoulli bitwise_left_shift bitwise_right_shift cos cosh sin sinh tan tanh asinh atan atan2 "
    "arctan2 ceil celu clamp clamp_max clamp_min clip clone contiguous copy copysign deg2rad "
    "detach dropout alpha_dropout elu eq erf erfc exp exp2 expm1 fill fix float_power floor fmax "
    "fmin frac ge gelu greater greater_equal gt half hardsigmoid hardswish hardtanh heaviside "
    "hypot isclose isfinite isinf isnan ldexp le leaky_relu lerp less less_equal lift_fresh "
    "lift_fresh_copy logaddexp logaddexp2 logical_and logical_not logical_or logical_xor "
    "logsigmoid log_sigmoid lt masked_fill maximum minimum mish mul multiply nan_to_num ne neg "
    "negative not_equal positive rad2deg reciprocal relu relu6 remainder round rrelu rsub selu sgn "
    "sigmoid sign signbit silu sinc softplus softshrink hardshrink square sub subtract tanhshrink "
    "threshold to _to_copy trunc where xlogy zeros_like ones_like full_like rand_like randn_like "
    "__and__ __or__ __xor__ __lshift__ __rshift__ "
    "zero conj float double bfloat16 long int bool type cpu cuda"
)
_POSITIVE = words("log log2 log10 log1p rsqrt sqrt lgamma digamma")
_UNIT = words("acos asin atanh arccos arcsin")
_LOSSES = {
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
}
_MASKS = ("condition", "mask")
_REDUCTIONS = ("none", "mean", "sum")
_DIVIDES = ("div", "divide", "true_divide", "floor_divide", "fmod", "remainder")


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[list[list[str]], list[str]]:
    """Names of the dims of tensors that broadcast together, and of what they give."""
    rank = max(map(len, shapes), default=0)
    names = letters(rank)
    whole = [1] * rank
    for shape in shapes:
        for back, size in enumerate(reversed(shape), 1):
            if size != 1:
                whole[-back] = size
    out = [name if size != 1 else "1" for name, size in zip(names, whole, strict=True)]
    inputs = [
        ["1" if size == 1 else out[rank - len(shape) + i] for i, size in enumerate(shape)]
        for shape in shapes
    ]
    return inputs, out


def pointwise(arguments: Arguments, domain: Domain | None = None, noutputs: int = 1) -> Ruling:
    """Broadcast all tensors, and give `noutputs` of the broadcast shape."""
    tensors = arguments.tensors
    listed = any(isinstance(v, TensorInfo) for v in arguments.values.values())
    if not tensors or not listed:
        raise NoRule("takes no tensor: nothing to partition")
    inputs, out = broadcast([tensor.shape for tensor in tensors.values()])
    domains = {name: MASK for name in tensors if name in _MASKS}
    if domain is not None:
        domains |= dict.fromkeys(tensors, domain)
    dims = {name: said(dim) for name, dim in zip(tensors, inputs, strict=True)}
    return Ruling(dims, [said(out)] * noutputs, domains=domains)


def _like_first(arguments: Arguments) -> Ruling:
    """The first tensor decides the shape; others, such as a dtype's example, are replicated."""
    name, first = next(iter(arguments.tensors.items()))
    names = letters(len(first.shape))
    dims = said(["1" if size == 1 else n for n, size in zip(names, first.shape, strict=True)])
    return Ruling({name: dims}, [dims])


def _divided(arguments: Arguments) -> Ruling:
    ruling = pointwise(arguments)
    by = [name for name in arguments.tensors if name in ("other", "value")]
    return Ruling(ruling.inputs, ruling.outputs, domains=dict.fromkeys(by, POSITIVE))


def _power(arguments: Arguments) -> Ruling:
    exponent = arguments.get("exponent")
    whole = isinstance(exponent, int) or (isinstance(exponent, float) and exponent.is_integer())
    return pointwise(arguments, None if whole else POSITIVE)


def _loss(arguments: Arguments) -> Ruling:
    reduction = arguments.get("reduction", default="mean")
    if isinstance(reduction, int):
        reduction = _REDUCTIONS[reduction]
    domains = {"target": POSITIVE} if "weight" in arguments.values else {}
    ruling = pointwise(arguments)
    if reduction == "none":
        return ruling
    mark = "+" if reduction == "sum" else "^"
    dims = {
        name: said([n if n == "1" else f"{n}{mark}" for n in str(text).split()])
        for name, text in ruling.inputs.items()
    }
    return Ruling(dims, ["1"], domains=domains)


def _probabilities(arguments: Arguments) -> Ruling:
    ruling = _loss(arguments)
    unit = {"self": Domain(POSITIVE.kind, 1), "input": Domain(POSITIVE.kind, 1)}
    return Ruling(ruling.inputs, ruling.outputs, domains=unit | {"target": unit["self"]})


def _two(arguments: Arguments) -> Ruling:
    return pointwise(arguments, noutputs=2)


def _positive(arguments: Arguments) -> Ruling:
    return pointwise(arguments, POSITIVE)


def _unit(arguments: Arguments) -> Ruling:
    return pointwise(arguments, UNIT)


RULES: dict[str, Annotator] = {
    **dict.fromkeys(_NAMES, pointwise),
    **dict.fromkeys(_POSITIVE, _positive),
    **dict.fromkeys(_UNIT, _unit),
    **dict.fromkeys(_LOSSES, _loss),
    **dict.fromkeys(_DIVIDES, _divided),
    "binary_cross_entropy": _probabilities,
    "pow": _power,
    "native_dropout": _two,
    "type_as": _like_first,
}
