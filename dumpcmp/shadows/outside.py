"""What came from code that was not recorded: losses and optimizers, between what was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.value import DTYPES
from dumpcmp.shadows.program import ValueId
from dumpcmp.shadows.running import Shadow, load
from dumpcmp.shadows.starting import LeafPair

# Rounding goes into unrecorded code and comes out larger: by how much, nobody knows. Losses and
# optimizers hand on relative errors about as they are, so that a few bits are allowed for them.
GROWTH = 16.0
OTHER = 2.0**-4  # far beyond all rounding: the code computes something else


@dataclass(frozen=True, slots=True)
class Distance:
    """How far two leaves are apart, and how far rounding may have brought them."""

    found: float
    allowed: float

    @property
    def is_rounding(self) -> bool:
        return self.found <= self.allowed

    @property
    def is_other(self) -> bool:
        """Whether no rounding explains it."""
        return self.found > max(OTHER, self.allowed)


def is_outside(pair: LeafPair, step: int) -> bool:
    """Whether unrecorded code made this leaf: of outputs of the model, or of its gradients."""
    slot = pair.target.key.slot
    return slot.is_gradient or (step > 0 and slot.is_weight)


def distance(
    pair: LeafPair, golden: Shadow, target: Shadow, before: Shadow | None, noise: float
) -> Distance:
    """How far a leaf that unrecorded code made is from golden's; `noise` is what went into it.

    A weight that an optimizer moved is measured by how far it was moved.
    """
    try:
        ours = load(golden.archive, golden.record(pair.golden))
        theirs = load(target.archive, target.record(pair.target))
    except DumpcmpError:
        return Distance(0.0, -1.0)
    size = _norm(ours)
    eps = max(_eps(golden, pair.golden), _eps(target, pair.target))
    moved = _moved(pair, golden, before, ours) or size
    found = _norm(ours - theirs) / moved if moved else float(_norm(theirs) > 0)
    return Distance(found, GROWTH * (noise + eps * size / moved if moved else noise))


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


def _moved(pair: LeafPair, golden: Shadow, before: Shadow | None, now: Tensor) -> float:
    """How far golden's optimizer has moved a weight."""
    key = pair.golden.key
    if before is None or not key.slot.is_weight:
        return 0.0
    earlier = ValueId(pair.golden.rank, Key(key.model, key.step - 1, key.op, key.call, key.slot))
    record = before.program.records.get(earlier)
    if record is None or record.shape != tuple(now.shape):
        return 0.0
    try:
        return _norm(now - load(golden.archive, record))
    except DumpcmpError:
        return 0.0


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.to(torch.float64).reshape(-1)))


def _eps(shadow: Shadow, value: ValueId) -> float:
    return DTYPES[shadow.record(value).dtype].eps
