"""What came from code that was not recorded: losses and optimizers, between what was."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.value import DTYPES
from dumpcmp.shadows.program import ValueId
from dumpcmp.shadows.shadow import Shadow, load
from dumpcmp.shadows.starting import Before, LeafPair

# Rounding goes into unrecorded code and comes out larger: by how much, nobody knows. Losses and
# optimizers hand on relative errors about as they are, so that a few bits are allowed for them.
GROWTH = 16.0
SLIGHT = 2.0**-21  # off golden's: nobody knows whether a leaf that is so near was rounded
COARSEST = 2.0**-3  # what rounding to the shortest floats that are stored makes of a number
NEAR = 2.0**-5  # what was drawn is so near only where it was drawn alike


@dataclass(frozen=True, slots=True)
class HowFar:
    """How far two leaves are apart, and how far rounding may have brought them."""

    found: float
    allowed: float

    @property
    def is_rounding(self) -> bool:
        return self.found <= self.allowed


def is_late(pair: LeafPair, step: int) -> bool:
    """Whether losses or optimizers, which were not recorded, made this leaf."""
    slots = pair.golden.key.slot, pair.target.key.slot
    is_weight = any(slot.is_weight for slot in slots)
    return slots[1].is_gradient or (step > 0 and is_weight)


def may_be_rounded(pair: LeafPair, step: int) -> bool:
    """Whether code that was not recorded may have made this leaf, of what was computed before."""
    return is_late(pair, step) or not is_given(pair.target)


def is_given(leaf: ValueId) -> bool:
    """Whether a leaf is a weight or what the model was called with, and nothing between calls."""
    return leaf.key.slot.is_weight or leaf.key.op == ROOT


def drew_alike(pair: LeafPair, golden: Shadow, target: Shadow) -> bool:
    """Whether both drew the same, or dropped the same of what they were given, each rounded."""
    try:
        ours, theirs = _loaded(golden, pair.golden), _loaded(target, pair.target)
    except DumpcmpError:
        return False
    if ours.shape != theirs.shape or not ((ours == 0) == (theirs == 0)).all():
        return False
    return _norm(ours - theirs) <= NEAR * _norm(ours)


def distance(
    pair: LeafPair, golden: Shadow, target: Shadow, before: Before | None, noise: float
) -> HowFar:
    """How far a leaf that unrecorded code made is from golden's.

    `noise` is how far apart the outputs are that the gradients of a loss are made of. A weight is
    measured by how far its optimizer moved it, on either side, since the step before.
    """
    try:
        if before is not None and pair.golden.key.slot.is_weight:
            return _moved_apart(pair, golden, target, before)
        ours, theirs = _loaded(golden, pair.golden), _loaded(target, pair.target)
    except (DumpcmpError, KeyError):
        return HowFar(0.0, -1.0)
    if ours.shape != theirs.shape:
        return HowFar(math.inf, -1.0)
    size = _norm(ours)
    eps = max(_eps(golden, pair.golden), _eps(target, pair.target))
    found = _norm(ours - theirs) / size if size else float(_norm(theirs) > 0)
    return HowFar(found, GROWTH * (noise + eps))


def _moved_apart(pair: LeafPair, golden: Shadow, target: Shadow, before: Before) -> HowFar:
    """How far an optimizer moved a weight otherwise than golden's, of how far that moved it.

    What it does with an element follows from that element's gradients alone, so that an element
    whose gradient is nothing but rounding may go anywhere that its like goes.
    """
    now = _loaded(golden, pair.golden), _loaded(target, pair.target)
    sides = (before.golden, pair.golden), (before.target, pair.target)
    earlier = [_earlier(value) for _, value in sides]
    was = [_loaded(shadow, value) for (shadow, _), value in zip(sides, earlier, strict=True)]
    if len({tensor.shape for tensor in (*now, *was)}) > 1:
        raise DumpcmpError("it had another shape before")
    moves = now[0] - was[0], now[1] - was[1]
    apart = (moves[1] - moves[0]).abs()
    eps = max(_eps(golden, pair.golden), _eps(target, pair.target))
    allowed = GROWTH * eps * (now[0].abs() + was[0].abs())
    grads = [
        _loaded(shadow, shadow.program.gradients[value])
        for (shadow, _), value in zip(sides, earlier, strict=True)
        if value in shadow.program.gradients
    ]
    if len(grads) == 2 and not before.is_term(earlier[1]):
        share = ((grads[1] - grads[0]).abs() / grads[0].abs().clamp_min(1e-300)).clamp_max(2.0)
        largest = torch.stack(moves).abs().max()
        allowed = allowed + GROWTH * share * largest
    size = max(map(_norm, moves))
    excess = _norm((apart - allowed).clamp_min(0.0))
    return HowFar(excess / size if size else float(excess > 0), GROWTH * eps)


def _earlier(value: ValueId) -> ValueId:
    key = value.key
    return ValueId(value.rank, Key(key.model, key.step - 1, key.op, key.call, key.slot))


def _loaded(shadow: Shadow, value: ValueId) -> Tensor:
    return load(shadow.archive, shadow.record(value))


def noise_of(pairs: Iterable[tuple[ValueId, ValueId]], golden: Shadow, target: Shadow) -> float:
    """How far apart, at most, the recorded values of these pairs are."""
    found = 0.0
    for ours, theirs in pairs:
        try:
            one = load(golden.archive, golden.record(ours))
            other = load(target.archive, target.record(theirs))
        except DumpcmpError:
            continue
        if one.shape == other.shape and one.is_floating_point() and (size := _norm(one)):
            found = max(found, _norm(one - other) / size)
    return found


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.to(torch.float64).reshape(-1)))


def _eps(shadow: Shadow, value: ValueId) -> float:
    return DTYPES[shadow.record(value).dtype].eps
