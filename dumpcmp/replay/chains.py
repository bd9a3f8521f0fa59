"""Runs several of golden's calls one after the other: a region between values of both sides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dumpcmp.nouns.record import Call
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.limits import MOST_BYTES
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.rating import NO_NOISE
from dumpcmp.replay.running import Rerun, errors_of, rerun, run_natively
from dumpcmp.replay.unreplayable import Unreplayable

At = tuple[int, str]  # the how-manieth call of a region, and a slot of it

_SUMMING = (FunctionKind.CONTRACTS, FunctionKind.SUMS, FunctionKind.NORMALISES,
            FunctionKind.COMPOSES, FunctionKind.SCANS)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chain:
    """Calls in the order in which they run, and which of their inputs are outputs of others."""

    calls: Sequence[Call]
    wires: Mapping[At, At] = field(default_factory=dict)  # an input -> the output that it is
    dtypes: Mapping[At, torch.dtype] = field(default_factory=dict)  # of outputs, as golden ran


def rerun_region(
    region: Chain,
    given: Mapping[At, Tensor],
    wanted: Mapping[str, At],
    *,
    device: str = "cpu",
    limit: int = MOST_BYTES,
) -> Rerun:
    """Run the calls of `region` from the values at its edge: `given`, by call and input slot.

    `wanted` names the outputs that are asked for. Nothing is rounded between the calls, as in a
    fused kernel. `noise` is the error of the same calls in the dtypes of `given`, with each value
    between them in the dtype that golden had it in. Another kernel adds up in another order in
    each call that sums, and what that rounds adds up by squares: the condition.
    """
    if len(region.calls) == 1 and not region.wires:
        alone = rerun(region.calls[0], _inputs(region, 0, given, {}), device=device, limit=limit)
        return _named(alone, {name: slot for name, (_, slot) in wanted.items()})
    wide = _run(region, given, device, limit, is_rounded=False)
    short = _run(region, given, device, limit, is_rounded=True)
    outputs = {name: _found(wide, place) for name, place in wanted.items()}
    errors = {name: errors_of(short[place], outputs[name]) for name, place in wanted.items()}
    noise = {name: error for name, (error, _) in errors.items()}
    worst = {name: largest for name, (_, largest) in errors.items()}
    sums = [function_named(call.target, device).kind in _SUMMING for call in region.calls]
    condition = dict.fromkeys(wanted, math.sqrt(max(1, sum(sums))))
    return Rerun(outputs, condition, noise, worst, num_ops=len(region.calls))


def _named(alone: Rerun, wanted: Mapping[str, str]) -> Rerun:
    """A Rerun of one call, with its outputs under other names."""
    missing = [slot for slot in wanted.values() if slot not in alone.outputs]
    if missing:
        raise Unreplayable(f"its replay gives no {missing[0]}")
    return Rerun(
        {name: alone.outputs[slot] for name, slot in wanted.items()},
        {name: alone.condition.get(slot, 1.0) for name, slot in wanted.items()},
        {name: alone.noise.get(slot, 0.0) for name, slot in wanted.items()},
        {name: alone.worst_noise.get(slot, NO_NOISE) for name, slot in wanted.items()},
        alone.is_exact,
        terms={name: alone.terms[slot] for name, slot in wanted.items() if slot in alone.terms},
    )


def _found(values: Mapping[At, Tensor], place: At) -> Tensor:
    if place not in values:
        raise Unreplayable(f"its replay gives no {place[1]}")
    return values[place]


def _inputs(
    region: Chain,
    number: int,
    given: Mapping[At, Tensor],
    made: Mapping[At, Tensor],
) -> dict[str, Tensor]:
    """The inputs of one call by slot: those at the edge, and those that calls before it made."""
    inner = {slot: _found(made, source) for (call, slot), source in region.wires.items()
             if call == number}  # fmt: skip
    return {slot: value for (call, slot), value in given.items() if call == number} | inner


def _run(
    region: Chain,
    given: Mapping[At, Tensor],
    device: str,
    limit: int,
    *,
    is_rounded: bool,
) -> dict[At, Tensor]:
    made: dict[At, Tensor] = {}
    for number, call in enumerate(region.calls):
        inputs = _inputs(region, number, given, made)
        if is_rounded:
            outputs = run_natively(call, inputs, device=device, limit=limit)
        else:
            outputs = rerun(call, inputs, device=device, limit=limit, is_rated=False).outputs
        for slot, value in outputs.items():
            place = number, slot
            dtype = region.dtypes.get(place, value.dtype)
            made[place] = _as_run(value, dtype, is_rounded)
    return made


def _as_run(value: Tensor, dtype: torch.dtype, is_rounded: bool) -> Tensor:
    """`value` as the next call takes it: rounded to golden's dtype, or wide as it is."""
    if not value.is_floating_point():
        return value.to(dtype) if not value.is_complex() else value
    return value.to(dtype if is_rounded else torch.float64)
