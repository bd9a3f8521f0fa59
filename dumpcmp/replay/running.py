"""Runs one recorded call again: in float64, or as it was where it only moves its elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.record import Call
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.replay.arguments import CallArguments, read_arguments
from dumpcmp.replay.cancelling import is_pointwise, is_single, norm_condition, terms_of
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.limits import MOST_BYTES, check_size
from dumpcmp.replay.listed import ReplayFunction, function_named
from dumpcmp.replay.unreplayable import Unreplayable

_EXACT = (FunctionKind.MOVES, FunctionKind.CHOOSES)
_SINGLE = 2.0**-24  # the rounding of one float32
_SHORT = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
_SCATTERED = ("index_add", "scatter_add", "index_put", "scatter_reduce", "index_reduce", "scatter")
_LEFT_OUT = ("out", "pin_memory", "generator")

# What autocast computes in its own dtype.
_LOWERED = frozenset(
    """
    addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d conv_transpose3d convolution einsum gru gru_cell linalg_multi_dot
    linalg_vecdot linear lstm lstm_cell matmul mm mv prelu rnn_relu rnn_relu_cell rnn_tanh
    rnn_tanh_cell scaled_dot_product_attention multi_head_attention_forward _convolution
    grouped_mm _grouped_mm
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Rerun:
    """What a call gives out when it is run again, by slot."""

    outputs: dict[str, Tensor]  # in float64 or complex128; of moves, the very elements
    condition: dict[str, float] = field(default_factory=dict)  # terms of sums over what is left
    noise: dict[str, float] = field(default_factory=dict)  # error of the run in its own dtypes
    is_exact: bool = False  # it only moves or casts: every bit is known
    num_ops: int = 1
    terms: dict[str, Tensor] = field(default_factory=dict)  # the sums of absolute values
    is_pointwise: bool = False  # an element of the output is made of one of each input


def rerun(
    call: Call,
    given: Mapping[str, Tensor],
    *,
    device: str = "cpu",
    limit: int = MOST_BYTES,
    is_rated: bool = True,
) -> Rerun:
    """Run `call` on `given`, its inputs by slot, and tell how well its output is determined.

    `device` is the type of the device that the recorded run was on, which autocast asks for. What
    is not to be rated has neither condition nor noise.
    """
    function = function_named(call.target)
    arguments = fitted(read_arguments(call.arguments, given), given)
    _refuse(function, arguments)
    if is_exact(function, arguments):
        check_size(function, arguments, limit)
        return Rerun(run_exactly(function, arguments), is_exact=True)
    wide = widened(function, arguments, device)
    check_size(function, wide, limit)
    outputs = run(function, wide)
    return _rated(function, arguments, wide, outputs) if is_rated else Rerun(outputs)


def run_natively(
    call: Call, given: Mapping[str, Tensor], *, device: str = "cpu", limit: int = MOST_BYTES
) -> dict[str, Tensor]:
    """What `call` gives out in the dtypes of `given`, by slot."""
    function = function_named(call.target)
    arguments = fitted(read_arguments(call.arguments, given), given)
    _refuse(function, arguments)
    check_size(function, arguments, limit)
    return run(function, lowered(function, arguments, device))


def fitted(arguments: CallArguments, given: Mapping[str, Tensor]) -> CallArguments:
    """`arguments` without what says where a result goes, and with tensors where `given` are."""
    where = next(iter(given.values())).device if given else torch.device("cpu")
    kept = {w: v for w, v in arguments.kwargs.items() if w not in _LEFT_OUT}
    found = CallArguments(arguments.args, kept, arguments.autocast)
    return found.mapped(lambda leaf: where if isinstance(leaf, torch.device) else leaf)


def _refuse(function: ReplayFunction, arguments: CallArguments) -> None:
    if function.kind is FunctionKind.NOTHING:
        raise Unreplayable("it gives out memory as it was found")
    if function.kind is FunctionKind.DRAWS and not _is_idle(function, arguments):
        raise Unreplayable("it draws random numbers")


def _is_idle(function: ReplayFunction, arguments: CallArguments) -> bool:
    """Whether a dropout drops nothing: it is not in training, or its probability is 0."""
    if "dropout" not in function.name:
        return False
    told = dict(zip(("input", "p", "training"), arguments.args, strict=False)) | arguments.kwargs
    trains = told.get("training", told.get("train", True))
    return not trains or told.get("p", 0.5) == 0


def is_exact(function: ReplayFunction, arguments: CallArguments) -> bool:
    """Whether every bit of the output is known: nothing is rounded, but for a cast."""
    if function.name == "arange":
        return not any(isinstance(leaf, float) for leaf in arguments.leaves())
    if function.kind in (*_EXACT, FunctionKind.DRAWS):
        return not _adds_up(function, arguments)
    tensors = arguments.tensors()
    inexact = any(t.is_floating_point() or t.is_complex() for t in tensors)
    return bool(tensors) and not inexact and not _makes_floats(function, arguments)


def _adds_up(function: ReplayFunction, arguments: CallArguments) -> bool:
    """Whether a move adds to what is there: index_put with accumulate, scatter with reduce."""
    told = arguments.kwargs
    if function.name == "embedding":
        return told.get("max_norm") is not None
    if function.name == "abs":
        return any(t.is_complex() for t in arguments.tensors())
    if function.name in ("index_put", "_unsafe_index_put"):
        return bool(told.get("accumulate", (*arguments.args, False, False, False, False)[3]))
    return function.name == "scatter" and "reduce" in told


def _makes_floats(function: ReplayFunction, arguments: CallArguments) -> bool:
    """Whether a function of integers gives out floats: a division, a mean, a factor of 0.5."""
    leaves = arguments.leaves()
    if any(isinstance(leaf, float) for leaf in leaves):
        return True
    if any(isinstance(leaf, torch.dtype) and leaf.is_floating_point for leaf in leaves):
        return True
    exact = ("add", "sub", "mul", "multiply", "subtract", "rsub", "sum", "cumsum", "cumprod",
             "prod", "matmul", "mm", "bmm", "floor_divide", "remainder", "fmod", "square", "pow",
             "index_add", "scatter_add", "dot", "trace", "addcmul", "diff", "outer", "_int_mm",
             "nansum", "tensordot", "einsum")  # fmt: skip
    return function.name not in exact


def run_exactly(function: ReplayFunction, arguments: CallArguments) -> dict[str, Tensor]:
    """Run a move on elements as they are; a cast is left to whoever knows its result's dtype."""
    integral = any(not _is_inexact(t) for t in arguments.tensors()[:1])

    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype) and leaf.is_floating_point and function.name != "view":
            return torch.float32 if integral and leaf != torch.float64 else torch.float64
        return leaf

    return run(function, arguments.mapped(change))


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def widened(function: ReplayFunction, arguments: CallArguments, device: str) -> CallArguments:
    """`arguments` in float64, rounded before to what autocast computes in."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return wide_dtype(leaf)
        if isinstance(leaf, Tensor) and _is_inexact(leaf):
            return leaf.to(wide_dtype(leaf.dtype))
        return leaf

    return lowered(function, arguments, device).mapped(change)


def lowered(function: ReplayFunction, arguments: CallArguments, device: str) -> CallArguments:
    """`arguments` in the dtype that autocast has this function compute in."""
    lower = arguments.autocast.get(device) if function.name in _LOWERED else None
    if lower is None:
        return arguments
    eligible = (torch.float32, torch.float16, torch.bfloat16)
    return arguments.mapped(
        lambda leaf: leaf.to(lower) if isinstance(leaf, Tensor) and leaf.dtype in eligible else leaf
    )


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The widest dtype of its kind."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


@contextmanager
def float64_by_default() -> Iterator[None]:
    """Have floats that are made from integers, or from nothing, be float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def run(function: ReplayFunction, arguments: CallArguments) -> dict[str, Tensor]:
    """Call the function; its tensors by slot. What it changes in place is a copy."""
    args, kwargs = list(arguments.args), arguments.kwargs
    if function.changes_first and args and isinstance(args[0], Tensor):
        args[0] = args[0].clone()
    try:
        with torch.no_grad(), float64_by_default():
            result = function.run(*args, **kwargs)
    except Exception as error:
        said = str(error).partition("\n")[0][:160]
        raise Unreplayable(f"it cannot be run in float64: {said}") from None
    return dict(slots_of("output", args[0] if function.returns_nothing else result))


def _rated(
    function: ReplayFunction,
    arguments: CallArguments,
    wide: CallArguments,
    outputs: dict[str, Tensor],
) -> Rerun:
    """What was run, with the condition of each output, and the noise where there is no formula."""
    double = any(leaf.dtype in (torch.float64, torch.complex128) for leaf in arguments.tensors())
    terms = terms_of(function, wide, outputs, torch.float64 if double else torch.float32)
    condition = {slot: ratio_of(terms[slot], outputs[slot]) for slot in terms}
    if function.kind is FunctionKind.ADDS:
        noise = _scalar_noise(function, arguments, wide, outputs)
        return Rerun(outputs, condition, noise, terms=terms, is_pointwise=True)
    if function.kind in (FunctionKind.CONTRACTS, FunctionKind.SUMS):
        return Rerun(outputs, condition, _sum_noise(function, arguments, outputs), terms=terms)
    if function.kind is FunctionKind.ELEMENTWISE and is_single(function):
        return Rerun(outputs, is_pointwise=True)
    noise = _errors(function, arguments, outputs)
    if all(leaf.dtype not in _SHORT for leaf in arguments.tensors()):
        single = noise if not double else {}
    else:
        single = _errors(function, wide.mapped(_to(torch.float32)), outputs)
    condition = {slot: max(1.0, error / _SINGLE) for slot, error in single.items()}
    if function.kind is FunctionKind.NORMALISES:
        told = norm_condition(function, wide, outputs["output.0"])
        condition["output.0"] = max(told, condition.get("output.0", 1.0))
    return Rerun(outputs, condition, noise, terms=terms, is_pointwise=is_pointwise(function))


def _scalar_noise(
    function: ReplayFunction,
    arguments: CallArguments,
    wide: CallArguments,
    outputs: dict[str, Tensor],
) -> dict[str, float]:
    """What it makes that some devices round a Python number to the dtype of the tensor first."""
    short = next((t.dtype for t in arguments.tensors() if t.dtype in _SHORT), None)
    if short is None or not any(isinstance(leaf, float) for leaf in wide.leaves()):
        return {}

    def change(leaf: Any) -> Any:
        return float(torch.tensor(leaf, dtype=short)) if isinstance(leaf, float) else leaf

    other = run(function, wide.mapped(change))
    return {slot: error_of(other[slot], outputs[slot]) for slot in outputs}


def _sum_noise(
    function: ReplayFunction, arguments: CallArguments, outputs: dict[str, Tensor]
) -> dict[str, float]:
    """What a sum rounds that is made term by term, in float32, or in its own dtype if scattered.

    Rounding of so many steps grows with their root.
    """
    if any(isinstance(leaf, torch.dtype) for leaf in arguments.leaves()):
        return _errors(function, arguments, outputs)
    tensors = [t for t in arguments.tensors() if _is_inexact(t)]
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


def _errors(
    function: ReplayFunction, arguments: CallArguments, outputs: dict[str, Tensor]
) -> dict[str, float]:
    """The errors of the same function in other dtypes; none where it cannot be run in them."""
    try:
        found = run(function, arguments)
    except Unreplayable:
        return {}
    return {slot: error_of(found[slot], outputs[slot]) for slot in outputs if slot in found}


def error_of(narrow: Tensor, wide: Tensor) -> float:
    """The rel_l2 of `narrow` against `wide` as its dtype rounds it, over what is finite in both."""
    if not _is_inexact(wide) or narrow.shape != wide.shape:
        return 0.0
    d = narrow.to(wide.dtype) - wide.to(narrow.dtype).to(wide.dtype)
    finite = torch.isfinite(d)
    norm = float(torch.linalg.vector_norm(wide[finite]))
    return float(torch.linalg.vector_norm(d[finite])) / norm if norm else 0.0


def ratio_of(terms: Tensor, left: Tensor) -> float:
    """How much larger `terms` are than what is `left` of them."""
    finite = torch.isfinite(terms) & torch.isfinite(left)
    above = float(torch.linalg.vector_norm(terms[finite].double()))
    below = float(torch.linalg.vector_norm(left[finite]))
    return max(1.0, above / max(below, above * 2.0**-40)) if above else 1.0
