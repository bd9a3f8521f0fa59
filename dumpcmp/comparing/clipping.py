"""By how much gradients were clipped to a norm, step by step, as a run recorded it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dumpcmp.align.counting import Counting
from dumpcmp.comparing.side import Side, StepName
from dumpcmp.comparing.step_effects import first_tree
from dumpcmp.nouns.effects import CLIPPING, Effect, parts_of_effect
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.row import Measured, Pair

_FLOOR = 1e-6  # that torch adds to a norm before it divides by it


def clip_factors(side: Side) -> dict[StepName, float]:
    """By what the gradients of each step were multiplied; those that were not clipped lack."""
    found: dict[StepName, float] = {}
    for name, by_rank in side.effects.items():
        for call in next(iter(by_rank.values()), ()):
            if call.op == Effect.TRAINING.op and first_tree(call).get("object") == CLIPPING:
                parts = parts_of_effect(call)
                most, norm = (
                    _number(side, call, parts, word) for word in ("max_norm", "total_norm")
                )
                factor = min(1.0, most / (norm + _FLOOR))
                if math.isfinite(factor):
                    found[name] = found.get(name, 1.0) * factor
    return found


def clipped_by(
    measured: Mapping[Pair, Measured], golden: Side, target: Side, counting: Counting
) -> dict[StepName, Pair]:
    """Of each of golden's steps that both sides clip by other norms: the gradient farthest apart.

    All gradients of the step are multiplied by what the norm of all of them gives.
    """
    ours, theirs = clip_factors(golden), clip_factors(target)
    terms = {(counting.names.get(model, model), counting.in_golden_terms(model, step)): factor
             for (model, step), factor in theirs.items()}  # fmt: skip
    steps = {name for name, factor in ours.items() if terms.get(name, factor) != factor}
    found: dict[StepName, tuple[float, Pair]] = {}
    for pair, one in measured.items() if steps else ():
        name = pair.key.model, pair.key.step
        if name in steps and pair.key.slot.is_parameter_gradient and one.metrics is not None:
            found[name] = max(found.get(name, (-1.0, pair)), (one.metrics.rel_l2, pair), key=_first)
    return {name: pair for name, (_, pair) in found.items()}


def _first(found: tuple[float, Pair]) -> float:
    return found[0]


def _number(side: Side, call: Call, parts: Mapping[str, Any], word: str) -> float:
    """A number that steered training, by value or as a tensor of one element; else NaN."""
    told = parts.get(word)
    if isinstance(told, int | float):
        return float(told)
    slot = told.get("slot") if isinstance(told, dict) else None
    records = side.effect_values.get(call.site.key(slot), ()) if slot else ()
    try:
        return (
            float(side.archive.load(records[0]).numbers().reshape(-1)[0]) if records else math.nan
        )
    except (DumpcmpError, IndexError):  # which the row of the value tells
        return math.nan
