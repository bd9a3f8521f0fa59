"""Runs one recorded call again: in float64, or as it was where it only moves its elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.op_names import OpSet
from dumpcmp.nouns.record import Call
from dumpcmp.replay.arguments import CallArguments, read_arguments
from dumpcmp.replay.drawing import NOT_DRAWING, draws, draws_alone, dropped_share
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.limits import MOST_BYTES, check_size
from dumpcmp.replay.listed import ReplayFunction, function_named
from dumpcmp.replay.making import EXACT_OF_INTEGERS, making_float64
from dumpcmp.replay.prepared import Blank, LaidReady, Preparations, PreparedCall, form_of
from dumpcmp.replay.rating import NO_NOISE, SHORT, WorstNoise, is_inexact, rated, run, run_as_told
from dumpcmp.replay.rating import Rerun as Rerun
from dumpcmp.replay.rating import errors_of as errors_of
from dumpcmp.replay.rating import ratio_of as ratio_of
from dumpcmp.replay.standins import UNWRITTEN
from dumpcmp.replay.tiling import CallTile, joined, tiles_of
from dumpcmp.replay.unreplayable import NothingToCheck, Unreplayable

_EXACT = (FunctionKind.MOVES, FunctionKind.CHOOSES)
_LEFT_OUT = ("out", "pin_memory", "generator")

# What autocast computes in its own dtype.
_LOWERED = OpSet(
    """
    addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d conv_transpose3d convolution einsum gru gru_cell linalg_multi_dot
    linalg_vecdot linear lstm lstm_cell matmul mm mv prelu rnn_relu rnn_relu_cell rnn_tanh
    rnn_tanh_cell scaled_dot_product_attention multi_head_attention_forward _convolution
    grouped_mm _grouped_mm
    """
)


def rerun(
    call: Call,
    given: Mapping[str, Tensor],
    *,
    device: str = "cpu",
    limit: int = MOST_BYTES,
    is_rated: bool = True,
) -> Rerun:
    """Run `call` on `given`, its inputs by slot, and tell how well its output is determined.

    A value of memory that nobody has written to may be given as a tensor of the meta device.
    `device` is the type of the device that the recorded run was on, which autocast asks for. What
    is not to be rated has neither condition nor noise.
    """
    function = function_named(call.target, device)
    if limit == MOST_BYTES and (known := _prepared(function, call, given, device)):
        return _run_prepared(known, given, device, is_rated)
    arguments = fitted(read_arguments(call.arguments, given), given)
    if share := dropped_share(function, arguments):
        return _run_dropout(arguments, share)
    _refuse(function, arguments)
    if is_exact(function, arguments):
        check_size(function, arguments, limit)
        return _run_moved(function, arguments)
    if any(tensor.is_meta for tensor in arguments.tensors()):
        raise Unreplayable("it computes with memory that nobody has written to")
    check_size(function, lowered(function, arguments, device), limit)
    tiles = tiles_of(function, arguments)
    if not tiles:
        return _run_widely(function, arguments, device, is_rated)
    parts = [(tile, _run_widely(function, tile.arguments, device, is_rated)) for tile in tiles]
    return _joined(parts)


_PREPARATIONS = Preparations()
# What decides how these are run are numbers, too, and not dtypes and shapes alone.
_BY_NUMBERS = OpSet("repeat_interleave bincount one_hot index_put")
_PUTS = OpSet("index_put _unsafe_index_put")
_NOT_PREPARED = (FunctionKind.DRAWS, FunctionKind.NOTHING)


def _prepared(
    function: ReplayFunction, call: Call, given: Mapping[str, Tensor], device: str
) -> PreparedCall | None:
    """What was found out about this call when it came before, on tensors of the same forms."""
    form = form_of(call.target, call.arguments, device, given)
    if form is None:
        return None
    found = _PREPARATIONS.get(form, lambda: _prepare(function, call, given, device))
    return found if found is not None and found.function is function else None


def _prepare(
    function: ReplayFunction, call: Call, given: Mapping[str, Tensor], device: str
) -> PreparedCall | None:
    """Find out what follows from the forms of what is `given`; None of what is not plain."""
    if function.kind in _NOT_PREPARED or function.name in _BY_NUMBERS:
        return None
    try:
        blanks = {slot: Blank.at(slot, tensor) for slot, tensor in given.items()}
        plain = fitted(read_arguments(call.arguments, blanks), blanks)
        actual = fitted(read_arguments(call.arguments, given), given)
        _refuse(function, actual)
        check_size(function, actual)
    except Unreplayable:
        return None  # which the ordinary way tells
    if dropped_share(function, actual) or tiles_of(function, actual):
        return None
    exact = is_exact(function, actual)
    if not exact and lowered(function, actual, device) is not actual:
        return None
    change = _moved_leaf(function, actual) if exact else _wide_leaf
    wide = actual.mapped(change)
    if making_float64(function, wide) is not wide:
        return None
    ready = plain.mapped(lambda leaf: leaf if isinstance(leaf, Tensor) else change(leaf))
    return PreparedCall(function, exact, LaidReady(plain), LaidReady(ready))


def _run_prepared(
    known: PreparedCall, given: Mapping[str, Tensor], device: str, is_rated: bool
) -> Rerun:
    """Run a call on tensors of forms that it was prepared for."""
    function = known.function
    if known.is_exact:
        return Rerun(run_as_told(function, known.wide.filled(given)), is_exact=True)
    widened_given = {slot: _wide_leaf(tensor) for slot, tensor in given.items()}
    wide = known.wide.filled(widened_given)
    outputs = run_as_told(function, wide)
    if not is_rated:
        return Rerun(outputs)
    plain = known.plain.filled(given)
    return _but_unwritten(function, plain, rated(function, plain, wide, outputs, device))


def _run_moved(function: ReplayFunction, arguments: CallArguments) -> Rerun:
    """A move; where it is given memory that nobody has written to, what comes of it is left out."""
    if not any(tensor.is_meta for tensor in arguments.tensors()):
        return Rerun(run_exactly(function, arguments), is_exact=True)
    places = (tensor.device for tensor in arguments.tensors() if not tensor.is_meta)
    fill = partial(_filled, next(places, torch.device("cpu")))
    one, other = (run_exactly(function, arguments.mapped(fill(word))) for word in (0, 1))
    unwritten = {slot: one[slot] != other[slot] for slot in one}
    return Rerun(one, is_exact=True, unwritten=unwritten)


def _filled(where: torch.device, word: int) -> Callable[[Any], Any]:
    def change(leaf: Any) -> Any:
        is_unknown = isinstance(leaf, Tensor) and leaf.is_meta
        return torch.full_like(leaf, word, device=where) if is_unknown else leaf

    return change


def _run_widely(
    function: ReplayFunction, arguments: CallArguments, device: str, is_rated: bool
) -> Rerun:
    wide = widened(function, arguments, device)
    outputs = run(function, wide)
    if not is_rated:
        return Rerun(outputs)
    return _but_unwritten(function, arguments, rated(function, arguments, wide, outputs, device))


def _but_unwritten(function: ReplayFunction, arguments: CallArguments, again: Rerun) -> Rerun:
    """`again`, which knows of elements that the op leaves as they were found in memory."""
    if function.name not in UNWRITTEN:
        return again
    mask = UNWRITTEN[function.name](*arguments.args, **arguments.kwargs)
    return replace(again, unwritten=dict.fromkeys(again.outputs, mask)) if mask.any() else again


def _run_dropout(arguments: CallArguments, share: float) -> Rerun:
    """What a dropout gives out where it drops nothing: which elements it drops is its own draw.

    Some devices round the factor to the dtype first.
    """
    first = arguments.tensors()[0]
    factor = 1 / (1 - share) if share < 1 else 0.0
    rounded = float(torch.tensor(factor, dtype=first.dtype))
    kept, slot = first.to(torch.float64) * factor, "output.0"
    noise = abs(rounded / factor - 1) if factor else 0.0
    return Rerun({slot: kept}, {}, {slot: noise}, dropped=share, is_pointwise=True)


def _joined(parts: list[tuple[CallTile, Rerun]]) -> Rerun:
    """What the tiles of one call gave, as one; its other outputs than the first are left out."""
    slot, ratings = "output.0", [part for _, part in parts]
    weights = [float(part.outputs[slot].square().sum()) for part in ratings]
    whole = sum(weights) or 1.0

    def mean(rates: list[float]) -> float:
        return math.sqrt(sum(r * r * w for r, w in zip(rates, weights, strict=True)) / whole)

    condition = mean([part.condition.get(slot, 1.0) for part in ratings])
    noise = mean([part.noise.get(slot, 0.0) for part in ratings])
    known = all(slot in part.terms for part in ratings)
    terms = {slot: joined([(tile, part.terms[slot]) for tile, part in parts])} if known else {}
    return Rerun(
        {slot: joined([(tile, part.outputs[slot]) for tile, part in parts])},
        {slot: max(1.0, condition)},
        {slot: noise},
        {slot: reduce(WorstNoise.max, (part.worst_noise.get(slot, NO_NOISE) for part in ratings))},
        terms=terms,
        is_pointwise=ratings[0].is_pointwise,
    )


def run_natively(
    call: Call, given: Mapping[str, Tensor], *, device: str = "cpu", limit: int = MOST_BYTES
) -> dict[str, Tensor]:
    """What `call` gives out in the dtypes of `given`, by slot."""
    function = function_named(call.target, device)
    arguments = fitted(read_arguments(call.arguments, given), given)
    _refuse(function, arguments)
    arguments = lowered(function, arguments, device)
    check_size(function, arguments, limit)
    return run(function, arguments)


def fitted(arguments: CallArguments, given: Mapping[str, Tensor]) -> CallArguments:
    """`arguments` without what says where a result goes, and with tensors where `given` are."""
    devices = (tensor.device for tensor in given.values() if not tensor.is_meta)
    where = next(devices, torch.device("cpu"))
    kept = {w: v for w, v in arguments.kwargs.items() if w not in _LEFT_OUT}
    found = CallArguments(arguments.args, kept, arguments.autocast)
    return found.mapped(lambda leaf: where if isinstance(leaf, torch.device) else leaf)


def _refuse(function: ReplayFunction, arguments: CallArguments) -> None:
    if function.kind is FunctionKind.NOTHING:
        raise NothingToCheck("it gives out memory as it was found")
    if draws_alone(function, arguments):
        raise NothingToCheck("it gives out what a random generator draws")
    if draws(function, arguments):
        may_draw_nothing = function.kind is not FunctionKind.DRAWS
        raise Unreplayable("it draws random numbers", hint=NOT_DRAWING * may_draw_nothing)


def is_exact(function: ReplayFunction, arguments: CallArguments) -> bool:
    """Whether every bit of the output is known: nothing is rounded, but for a cast."""
    if function.name == "arange":
        return not any(isinstance(leaf, float) or leaf in SHORT for leaf in arguments.leaves())
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
    if function.name in _PUTS:
        return bool(told.get("accumulate", (*arguments.args, False, False, False, False)[3]))
    return function.name == "scatter" and "reduce" in told


def _makes_floats(function: ReplayFunction, arguments: CallArguments) -> bool:
    """Whether a function of integers gives out floats: a division, a mean, a factor of 0.5."""
    leaves = arguments.leaves()
    if any(isinstance(leaf, float) for leaf in leaves):
        return True
    if any(isinstance(leaf, torch.dtype) and leaf.is_floating_point for leaf in leaves):
        return True
    return function.name not in EXACT_OF_INTEGERS


def run_exactly(function: ReplayFunction, arguments: CallArguments) -> dict[str, Tensor]:
    """Run a move on elements as they are; a cast is left to whoever knows its result's dtype."""
    return run(function, arguments.mapped(_moved_leaf(function, arguments)))


def _moved_leaf(function: ReplayFunction, arguments: CallArguments) -> Callable[[Any], Any]:
    integral = any(not is_inexact(t) for t in arguments.tensors()[:1])

    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype) and leaf.is_floating_point and function.name != "view":
            return torch.float32 if integral and leaf != torch.float64 else torch.float64
        return leaf

    return change


def widened(function: ReplayFunction, arguments: CallArguments, device: str) -> CallArguments:
    """`arguments` in float64, rounded before to what autocast computes in."""
    return lowered(function, arguments, device).mapped(_wide_leaf)


def _wide_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype):
        return wide_dtype(leaf)
    if isinstance(leaf, Tensor) and is_inexact(leaf):
        return leaf.to(wide_dtype(leaf.dtype))
    return leaf


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
