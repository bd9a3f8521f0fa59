"""Ops that treat every element alone, with broadcasting, and ops that reduce dims."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dumpcmp.partitioning.rules.ruling import (
    MASK,
    POSITIVE,
    UNIT,
    Annotators,
    Arguments,
    Domain,
    Names,
    NoRule,
    Ruling,
    dim_of,
    each,
    frozen,
    instead,
    letters,
    of_one,
    ones,
    said,
)

_NAMES = (
    "abs absolute add addcdiv addcmul alias bitwise_and bitwise_not bitwise_or bitwise_xor "
    "bernoulli bitwise_left_shift bitwise_right_shift cos cosh sin sinh tan tanh asinh atan atan2 "
    "arctan2 ceil celu clamp clamp_max clamp_min clip clone contiguous copy copysign deg2rad "
    "detach dropout alpha_dropout elu eq erf erfc exp exp2 expm1 fill fix float_power floor fmax "
    "fmin frac ge gelu greater greater_equal gt half hardsigmoid hardswish hardtanh heaviside "
    "hypot isclose isfinite isinf isnan ldexp le leaky_relu lerp less less_equal lift_fresh "
    "lift_fresh_copy logaddexp logaddexp2 logical_and logical_not logical_or logical_xor "
    "logsigmoid log_sigmoid lt masked_fill maximum minimum mish mul multiply nan_to_num ne neg "
    "negative not_equal positive rad2deg reciprocal relu relu6 remainder round rrelu rsub selu "
    "sgn sigmoid sign signbit silu sinc softplus softshrink hardshrink square sub subtract "
    "tanhshrink threshold to _to_copy trunc where xlogy zeros_like ones_like full_like rand_like "
    "randn_like __and__ __or__ __xor__ __lshift__ __rshift__ zero conj float double bfloat16 long "
    "int bool type cpu cuda"
)
_POSITIVE = "log log2 log10 log1p rsqrt sqrt lgamma digamma"
_UNIT = "acos asin atanh arccos arcsin"
_LOSSES = "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits"
_DIVIDES = "div divide true_divide floor_divide fmod remainder"
_REDUCTIONS = (
    "mean amax amin prod any all var std argmax argmin logsumexp norm linalg_vector_norm "
    "vector_norm count_nonzero"
)
_MASKS = ("condition", "mask")


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[list[list[str]], list[str]]:
    """Names of the dims of tensors that broadcast together, and of what they give."""
    rank = max(map(len, shapes), default=0)
    whole = [1] * rank
    for shape in shapes:
        for back, size in enumerate(reversed(shape), 1):
            if size != 1:
                whole[-back] = size
    out = ones(letters(rank), whole)
    return [ones(out[rank - len(shape) :], shape) for shape in shapes], out


def pointwise(arguments: Arguments, domain: Domain | None = None, noutputs: int = 1) -> Ruling:
    """Broadcast all tensors, and give `noutputs` of the broadcast shape."""
    tensors = arguments.tensors
    if not tensors:
        raise NoRule("takes no tensor: nothing to partition")
    inputs, out = broadcast([tensor.shape for tensor in tensors.values()])
    domains = {name: MASK for name in tensors if name in _MASKS}
    if domain is not None:
        domains |= dict.fromkeys(tensors, domain)
    dims = {name: said(dim) for name, dim in zip(tensors, inputs, strict=True)}
    return Ruling(dims, [said(out)] * noutputs, domains=domains)


def _like_first(_: Arguments, shape: tuple[int, ...], names: Names) -> tuple[Names, Names]:
    """The first tensor decides the shape; others, such as a dtype's example, are replicated."""
    return ones(names, shape), ones(names, shape)


def _divided(arguments: Arguments) -> Ruling:
    by = [name for name in arguments.tensors if name in ("other", "value")]
    return replace(pointwise(arguments), domains=dict.fromkeys(by, POSITIVE))


def _power(arguments: Arguments) -> Ruling:
    exponent = arguments.get("exponent")
    whole = isinstance(exponent, int) or (isinstance(exponent, float) and exponent.is_integer())
    return pointwise(arguments, None if whole else POSITIVE)


def reduction_mark(arguments: Arguments) -> str:
    """How a loss treats its samples: alone, summed, or in a mean, which is no sum of means."""
    reduction = arguments.get("reduction", default="mean")
    marks = {"none": "", "mean": "^", "sum": "+"}
    return list(marks.values())[reduction] if isinstance(reduction, int) else marks[reduction]


def _loss(arguments: Arguments) -> Ruling:
    mark, ruling = reduction_mark(arguments), pointwise(arguments)
    if not mark:
        return ruling
    dims = {
        name: said([n if n == "1" else f"{n}{mark}" for n in str(text).split()])
        for name, text in ruling.inputs.items()
    }
    return Ruling(dims, ["1"], domains={"target": POSITIVE} if "weight" in arguments.values else {})


def _probabilities(arguments: Arguments) -> Ruling:
    unit = Domain(POSITIVE.kind, 1)
    return replace(_loss(arguments), domains=dict.fromkeys(("self", "input", "target"), unit))


def _reduced(
    arguments: Arguments, shape: tuple[int, ...], names: Names, mark: str = "^"
) -> tuple[Names, Names]:
    """Only sums can be split along what they reduce."""
    given = arguments.get("dim", "axis")
    dims = [given] if isinstance(given, int) else list(given or range(len(shape)))
    gone = {dim_of(d, len(shape)) for d in dims}
    keep = arguments.get("keepdim", default=False)
    inputs = [f"{n}{mark}" if i in gone else n for i, n in enumerate(names)]
    return inputs, ["1" if i in gone else n for i, n in enumerate(names) if keep or i not in gone]


def _extreme(arguments: Arguments) -> Ruling:
    """``max(dim)`` gives values and places, ``max()`` the value, ``max(other)`` the larger ones."""
    if arguments.shape("other") is not None:
        return pointwise(arguments)
    return of_one(_reduced, 1 if arguments.get("dim") is None else 2)(arguments)


def _ordered(arguments: Arguments, shape: tuple[int, ...], names: Names) -> tuple[Names, Names]:
    """Sort and topk: the dim stays whole and may change its length."""
    dim = arguments.dim(len(shape), default=-1)
    return frozen(names, dim), instead(names, dim, "q^")


RULES: Annotators = {
    **each(_NAMES, pointwise),
    **each(_POSITIVE, partial(pointwise, domain=POSITIVE)),
    **each(_UNIT, partial(pointwise, domain=UNIT)),
    **each(_LOSSES, _loss),
    **each(_DIVIDES, _divided),
    "binary_cross_entropy": _probabilities,
    "pow": _power,
    "native_dropout": partial(pointwise, noutputs=2),
    "type_as": of_one(_like_first),
    "sum": of_one(partial(_reduced, mark="+")),
    **each(_REDUCTIONS, of_one(_reduced)),
    **each("var_mean std_mean", of_one(_reduced, 2)),
    **each("max min median", _extreme),
    **each("sort topk", of_one(_ordered, 2)),
    "argsort": of_one(_ordered),
}
