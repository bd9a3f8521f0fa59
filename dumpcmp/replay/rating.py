"""Runs a function, and tells how well what it gives out is determined, by formula or by trial."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dumpcmp.nouns.op_names import OpSet
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.replay.arguments import CallArguments
from dumpcmp.replay.cancelling import (
    is_nearest,
    is_pointwise,
    is_single,
    moments_noise,
    norm_condition,
    terms_of,
)
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.listed import ReplayFunction
from dumpcmp.replay.making import making_float64
from dumpcmp.replay.standins import ATTENTION_BACKWARD, attention_terms
from dumpcmp.replay.unreplayable import Unreplayable

_SINGLE = 2.0**-24  # the rounding of one float32
SHORT = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
_SCATTERED = OpSet(
    """
    embedding_dense_backward index_add index_put index_reduce max_pool2d_with_indices_backward
    max_pool3d_with_indices_backward scatter scatter_add scatter_reduce
    """
)

# Of short numbers each gives a whole number or a remainder that its dtype has, on any device.
_WHOLE = OpSet("floor_divide fmod")
_LARGEST_WHOLE = 2.0**22  # below it float32, in which kernels compute, has each

_SLOPES = ("_backward", "_backward_data")
_VANISHED = 2.0**-20  # of the gradient that is given: less is left of what cancels

# Kernels for tensors with gaps round more often, in the dtype of the run.
_BY_LAYOUT = OpSet("native_batch_norm_backward")


class WorstNoise(NamedTuple):
    """Where the error of a run in its own dtypes is largest."""

    row: float = 0.0
    element: float = 0.0

    def max(self, other: WorstNoise) -> WorstNoise:
        return WorstNoise(max(self.row, other.row), max(self.element, other.element))


NO_NOISE = WorstNoise()


@dataclass(frozen=True, slots=True)
class Rerun:
    """What a call gives out when it is run again, by slot."""

    outputs: dict[str, Tensor]  # in float64 or complex128; of moves, the very elements
    condition: dict[str, float] = field(default_factory=dict)  # terms of sums over what is left
    noise: dict[str, float] = field(default_factory=dict)  # error of the run in its own dtypes
    worst_noise: dict[str, WorstNoise] = field(default_factory=dict)  # where it is largest
    is_exact: bool = False  # it only moves or casts: every bit is known
    num_ops: int = 1
    terms: dict[str, Tensor] = field(default_factory=dict)  # the sums of absolute values
    unwritten: dict[str, Tensor] = field(default_factory=dict)  # where no value is known
    dropped: float = math.nan  # of a dropout: the share of elements that are zero in place of these
    is_pointwise: bool = False  # an element of the output is made of one of each input
    is_nearest: bool = False  # of short numbers, in one operation that loses nothing, rounded once
    is_either: bool = False  # a number may be rounded to the dtype of a tensor first, or may not


def run(function: ReplayFunction, arguments: CallArguments) -> dict[str, Tensor]:
    """Call the function; its tensors by slot. What it changes in place is a copy."""
    return run_as_told(function, making_float64(function, arguments))


def run_as_told(function: ReplayFunction, arguments: CallArguments) -> dict[str, Tensor]:
    """The same where it is known that the arguments make it compute in float64."""
    if function.kind is FunctionKind.NORMALISES:  # which may keep running statistics
        arguments = arguments.mapped(_copied)
    args, kwargs = list(arguments.args), arguments.kwargs
    if function.changes_first and args and isinstance(args[0], Tensor):
        args[0] = args[0].clone()
    try:
        with torch.no_grad() if torch.is_grad_enabled() else nullcontext():
            result = function.run(*args, **kwargs)
    except Exception as error:
        said = str(error).partition("\n")[0][:160]
        raise Unreplayable(f"it cannot be run in float64: {said}") from None
    return dict(slots_of("output", args[0] if function.returns_nothing else result))


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _is_whole(
    function: ReplayFunction, arguments: CallArguments, outputs: dict[str, Tensor]
) -> bool:
    """Whether there is one right result, which is not rounded."""
    if function.name not in _WHOLE or arguments.kwargs or "output.0" not in outputs:
        return False
    tensors, output = arguments.tensors(), outputs["output.0"]
    if any(leaf.dtype not in (*SHORT, torch.float32) for leaf in tensors):
        return False
    is_told = all(isinstance(leaf, (Tensor, int)) for leaf in arguments.leaves())
    return is_told and bool((output.abs() < _LARGEST_WHOLE).all())


def is_inexact(tensor: Tensor) -> bool:
    """Whether arithmetic on it rounds."""
    return tensor.is_floating_point() or tensor.is_complex()


def rated(
    function: ReplayFunction,
    arguments: CallArguments,
    wide: CallArguments,
    outputs: dict[str, Tensor],
    device: str = "cpu",
) -> Rerun:
    """What was run, with the condition of each output, and the noise where there is no formula."""
    if _is_whole(function, arguments, outputs):
        return Rerun(outputs, is_exact=True)
    double = any(leaf.dtype in (torch.float64, torch.complex128) for leaf in arguments.tensors())
    terms = terms_of(function, wide, outputs, torch.float64 if double else torch.float32)
    condition = {slot: ratio_of(terms[slot], outputs[slot]) for slot in terms}
    if function.kind is FunctionKind.ADDS:
        noise = _scalar_noise(function, arguments, wide, outputs)
        nearest = is_nearest(function, arguments)
        return Rerun(
            outputs, condition, noise, terms=terms, is_pointwise=True, is_nearest=nearest,
            is_either=bool(noise),
        )  # fmt: skip
    if function.kind in (FunctionKind.CONTRACTS, FunctionKind.SUMS):
        return Rerun(outputs, condition, _sum_noise(function, arguments, outputs), terms=terms)
    if function.kind is FunctionKind.ELEMENTWISE and is_single(function):
        noise = _scalar_noise(function, arguments, wide, outputs)
        nearest = is_nearest(function, arguments)
        return Rerun(
            outputs, noise=noise, is_pointwise=True, is_nearest=nearest, is_either=bool(noise)
        )
    short = _run_short(function, arguments)
    errors = {slot: errors_of(short[slot], outputs[slot]) for slot in outputs if slot in short}
    noise = {slot: error for slot, (error, _) in errors.items()}
    worst = {slot: largest for slot, (_, largest) in errors.items()}
    if function.name in _BY_LAYOUT:
        strided = _run_short(function, arguments.mapped(_strided))
        for slot in noise.keys() & strided.keys():
            error, largest = errors_of(strided[slot], outputs[slot])
            noise[slot] = max(noise[slot], error)
            worst[slot] = worst[slot].max(largest)
    if all(leaf.dtype not in SHORT for leaf in arguments.tensors()):
        single = noise if not double else {}
    else:
        single = _errors(function, wide.mapped(_to(torch.float32)), outputs)
    condition = {slot: max(1.0, error / _SINGLE) for slot, error in single.items()}
    if function.name in ATTENTION_BACKWARD:
        sums = attention_terms(function.name, *wide.args, **wide.kwargs)
        for slot in sums.keys() & outputs.keys():
            left = ratio_of(sums[slot], outputs[slot])
            condition[slot] = max(left, condition.get(slot, 1.0))
    if function.kind is FunctionKind.NORMALISES:
        told = norm_condition(function, wide, outputs["output.0"])
        condition["output.0"] = max(told, condition.get("output.0", 1.0))
        condition |= _mean_condition(function, wide, outputs)
        if device == "cuda" and "group_norm" in function.name:
            own = moments_noise(function, wide, outputs["output.0"], arguments.tensors()[0].dtype)
            noise["output.0"] = max(own, noise.get("output.0", 0.0))
    if function.name.endswith(_SLOPES):
        terms |= _vanished(function, wide, outputs)
        condition |= {slot: ratio_of(terms[slot], outputs[slot]) for slot in terms}
    pointwise = is_pointwise(function)
    return Rerun(outputs, condition, noise, worst, terms=terms, is_pointwise=pointwise)


def _vanished(
    function: ReplayFunction, wide: CallArguments, outputs: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Of gradients that cancel all but wholly: the size of what they are left of.

    It is the same with signs at random, of which nothing cancels.
    """
    grad = next((leaf for leaf in wide.args if isinstance(leaf, Tensor)), None)
    least = 0.0 if grad is None else _VANISHED * norm_of(grad)
    gone = [slot for slot, out in outputs.items() if is_inexact(out) and norm_of(out) < least]
    if grad is None or not gone:
        return {}
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, grad.shape, generator=generator, dtype=torch.int8) * 2 - 1
    at = next(place for place, leaf in enumerate(wide.args) if leaf is grad)
    args = (*wide.args[:at], grad * signs.to(grad.device), *wide.args[at + 1 :])
    found = run_as_told(function, replace(wide, args=args))
    sizes = {slot: norm_of(found[slot]) / max(1, found[slot].numel()) ** 0.5 for slot in gone}
    return {slot: torch.full_like(outputs[slot], size) for slot, size in sizes.items() if size}


def _mean_condition(
    function: ReplayFunction, wide: CallArguments, outputs: dict[str, Tensor]
) -> dict[str, float]:
    """How much larger what a norm takes the mean of is than the mean, where it gives that out."""
    if "output.1" not in outputs or not wide.args or not isinstance(wide.args[0], Tensor):
        return {}
    sizes = run_as_told(function, replace(wide, args=(wide.args[0].abs(), *wide.args[1:])))
    mean = outputs["output.1"]
    return {"output.1": ratio_of(sizes["output.1"], mean)} if mean.numel() else {}


def _scalar_noise(
    function: ReplayFunction,
    arguments: CallArguments,
    wide: CallArguments,
    outputs: dict[str, Tensor],
) -> dict[str, float]:
    """What it makes that some kernels round a number to the dtype of the tensor first.

    It is a Python number that is added, or a wider tensor of no dimensions.
    """
    short = next((t.dtype for t in arguments.tensors() if t.ndim and t.dtype in SHORT), None)
    is_added = function.kind is FunctionKind.ADDS
    if short is None or not any(_is_number(leaf, is_added) for leaf in wide.leaves()):
        return {}

    def change(leaf: Any) -> Any:
        if not _is_number(leaf, is_added):
            return leaf
        rounded = torch.as_tensor(leaf).to(short).to(torch.float64)
        return rounded if isinstance(leaf, Tensor) else float(rounded)

    other = run(function, wide.mapped(change))
    return {slot: error_of(other[slot], outputs[slot]) for slot in outputs}


def _is_number(leaf: Any, is_added: bool) -> bool:
    if isinstance(leaf, Tensor):
        return leaf.ndim == 0 and leaf.is_floating_point()
    return is_added and isinstance(leaf, float)


def _sum_noise(
    function: ReplayFunction, arguments: CallArguments, outputs: dict[str, Tensor]
) -> dict[str, float]:
    """What a sum rounds that is made term by term, in float32, or in its own dtype if scattered.

    Rounding of so many steps grows with their root.
    """
    if any(isinstance(leaf, torch.dtype) for leaf in arguments.leaves()):
        return _errors(function, arguments, outputs)
    tensors = [t for t in arguments.tensors() if is_inexact(t)]
    unit = max((_eps(t) for t in tensors), default=0.0)
    unit = unit if function.name in _SCATTERED else min(unit, 2 * _SINGLE)
    sizes = [float(max(1, t.numel())) for t in tensors]
    contracts = function.kind is FunctionKind.CONTRACTS
    return {
        slot: unit / 8 * math.sqrt(_num_terms(sizes, max(1, output.numel()), contracts))
        for slot, output in outputs.items()
    }


def _num_terms(sizes: list[float], size: int, contracts: bool) -> float:
    """How many terms each of so many outputs is the sum of; of two factors, each has its dim."""
    largest = sorted(sizes)[-2:]
    terms = math.sqrt(math.prod(largest) / size) if contracts else max(sizes, default=1.0) / size
    return max(1.0, terms)


def _eps(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps


def _to(dtype: torch.dtype) -> Any:
    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
            return dtype
        return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return change


def _strided(leaf: Any) -> Any:
    """The same with gaps between its elements."""
    if not isinstance(leaf, Tensor) or leaf.ndim < 2:
        return leaf
    return leaf.transpose(0, 1).contiguous().transpose(0, 1)


def _errors(
    function: ReplayFunction, arguments: CallArguments, outputs: dict[str, Tensor]
) -> dict[str, float]:
    """The errors of the same function in other dtypes; none where it cannot be run in them."""
    found = _run_short(function, arguments)
    return {slot: error_of(found[slot], outputs[slot]) for slot in outputs if slot in found}


def _run_short(function: ReplayFunction, arguments: CallArguments) -> dict[str, Tensor]:
    """What the function gives in other dtypes; nothing where it cannot be run in them."""
    try:
        return run(function, arguments)
    except Unreplayable:
        return {}


def error_of(narrow: Tensor, wide: Tensor) -> float:
    """The rel_l2 of `narrow` against `wide` as its dtype rounds it, over what is finite in both."""
    difference = _difference(narrow, wide)
    return 0.0 if difference is None else _rel_l2(difference, wide)


def errors_of(narrow: Tensor, wide: Tensor) -> tuple[float, WorstNoise]:
    """The same, and the largest errors of a row and of an element."""
    difference = _difference(narrow, wide)
    if difference is None:
        return 0.0, NO_NOISE
    return _rel_l2(difference, wide), _worst_of(difference, wide)


def _difference(narrow: Tensor, wide: Tensor) -> Tensor | None:
    if not is_inexact(wide) or narrow.shape != wide.shape:
        return None
    return narrow.to(wide.dtype) - wide.to(narrow.dtype).to(wide.dtype)


def _rel_l2(difference: Tensor, wide: Tensor) -> float:
    error, norm = norm_of(difference), norm_of(wide)
    if not math.isfinite(error + norm):
        finite = torch.isfinite(difference)
        error, norm = norm_of(difference[finite]), norm_of(wide[finite])
    return error / norm if norm else 0.0


def _worst_of(difference: Tensor, wide: Tensor) -> WorstNoise:
    """Errors of a row and of an element over its own size and that of a usual one."""
    if not wide.numel():
        return NO_NOISE
    element = _largest_share(difference.abs(), wide.abs())
    if not wide.ndim:
        return WorstNoise(element, element)
    rows = (torch.linalg.vector_norm(each, dim=-1) for each in (difference, wide))
    return WorstNoise(_largest_share(*rows), element)


def _largest_share(errors: Tensor, sizes: Tensor) -> float:
    """The largest of `errors` over its own size and a usual one, of those that are finite."""
    finite = torch.isfinite(errors) & torch.isfinite(sizes)
    errors, sizes = errors[finite], sizes[finite]
    usual = sizes.square().mean().sqrt()
    return float((errors / (sizes + usual)).max()) if errors.numel() and usual else 0.0


def norm_of(tensor: Tensor) -> float:
    """The root of the sum of squares, in the order of the elements, however they lie."""
    return float(torch.linalg.vector_norm(tensor.contiguous().reshape(-1)))


def ratio_of(terms: Tensor, left: Tensor) -> float:
    """How much larger `terms` are than what is `left` of them."""
    above, below = norm_of(terms.double()), norm_of(left)
    if not math.isfinite(above + below):  # then it is worth the while to look where
        finite = torch.isfinite(terms) & torch.isfinite(left)
        above, below = norm_of(terms[finite].double()), norm_of(left[finite])
    return max(1.0, above / max(below, above * 2.0**-40)) if above else 1.0
