"""Strands of two implementations that are one by their values, whatever computes them.

What a port computes by other calls, with its dims in another order, has no call in common with
golden. Its elements are golden's all the same, but for rounding.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dumpcmp.align.flow import Flow, Strand
from dumpcmp.align.sweeping import Sweep
from dumpcmp.align.turning import ElementsOf, Turns, turned, turns_of
from dumpcmp.judge.tolerances import SAME_VALUE, noise
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.value import Kind, dtype_named

_MANY = 16  # elements that two values do not share by chance
_NEAREST = 8  # values of about the same norm that are looked at
StepSize = tuple[str, int, int]  # a model, a step and a number of elements
Looking = tuple[Strand, tuple[int, ...]]  # a strand in one of its shapes
Strands = dict[Looking, Key]  # each by the first value of it


class _Shown(NamedTuple):
    """A value that stands for its strand."""

    norm: float
    key: Key
    strand: Strand
    eps: float


def join_alike(sweep: Sweep, turns: Turns) -> int:
    """Join strands without a mate to what they are on the other side; how many were found."""
    ours = _sized(sweep.ours, lambda site: site)
    theirs = _sized(sweep.theirs, sweep.sides.terms.__getitem__)
    num = 0
    for size in ours.keys() & theirs.keys():
        alone = any(strand not in sweep.mates for strand, _ in ours[size])
        if not alone and all(strand in sweep.same for strand, _ in theirs[size]):
            continue
        golden = _shown(sweep.ours, turns.ours, ours[size])
        target = _shown(sweep.theirs, turns.theirs, theirs[size])
        for one, other in _alike(sweep, turns, golden, target):
            sweep.join(one, other)
            num += 1
    return num


def _sized(flow: Flow, terms: Callable[[Site], Site]) -> dict[StepSize, Strands]:
    """The strands of a run by their sizes: floats with elements enough to tell."""
    found: dict[StepSize, Strands] = defaultdict(dict)
    for key, (record, *_) in flow.listing.values.items():
        numel, step = math.prod(record.shape), terms(key.site)
        is_float = dtype_named(record.dtype).kind is Kind.FLOAT
        if numel >= _MANY and is_float and not record.same_as and not key.slot.is_gradient:
            looking = flow.strand(key), record.shape
            found[step.model, step.step, numel].setdefault(looking, key)
    return found


def _shown(flow: Flow, elements: ElementsOf, strands: Strands) -> list[_Shown]:
    """The strands whose elements are kept, by their norms; none that is zero or not finite."""
    found = []
    for (strand, _), key in strands.items():
        value = elements(key)
        norm = float(np.linalg.norm(value)) if value is not None else 0.0
        if norm and math.isfinite(norm):
            eps = dtype_named(flow.listing.record(key).dtype).eps
            found.append(_Shown(norm, key, strand, eps))
    return sorted(found, key=lambda one: one.norm)


def _alike(
    sweep: Sweep, turns: Turns, golden: Sequence[_Shown], target: Sequence[_Shown]
) -> Iterator[tuple[Strand, Strand]]:
    """The strands of one size that are one, at least one of which has no mate."""

    def same(one: _Shown, other: _Shown) -> bool:
        return _is_same(turns, sweep, one, other)

    for one in _alone(golden, sweep.mates):
        other = next((other for other in _around(target, one) if same(one, other)), None)
        if other is not None:
            yield one.strand, other.strand
    for other in _alone(target, sweep.same):
        found = next((one for one in _around(golden, other) if same(one, other)), None)
        if found is not None:
            yield found.strand, other.strand


def _alone(values: Sequence[_Shown], mates: Container[Strand]) -> list[_Shown]:
    return [one for one in values if one.strand not in mates]


def _around(values: Sequence[_Shown], one: _Shown) -> list[_Shown]:
    """The values that have about the norm of `one`, in the order of their runs."""
    low = bisect_left(values, one.norm * (1 - SAME_VALUE), key=lambda other: other.norm)
    high = bisect_right(values, one.norm * (1 + SAME_VALUE), key=lambda other: other.norm)
    near = sorted(values[low:high], key=lambda other: abs(other.norm - one.norm))
    return sorted(near[:_NEAREST], key=lambda other: other.strand)


def _is_same(turns: Turns, sweep: Sweep, golden: _Shown, target: _Shown) -> bool:
    """Whether two values are one in some order of their dims, but for rounding."""
    limit = min(SAME_VALUE, noise(max(golden.eps, target.eps), 0))
    if abs(golden.norm - target.norm) > limit * golden.norm:
        return False
    shapes = [flow.listing.record(key).shape
              for flow, key in ((sweep.ours, golden.key), (sweep.theirs, target.key))]  # fmt: skip
    ways = list(turns_of(shapes[0], shapes[1]))
    ours, theirs = (turns.ours(golden.key), turns.theirs(target.key)) if ways else (None, None)
    if ours is None or theirs is None:
        return False
    apart = (np.linalg.norm(turned(theirs, way, ours.shape) - ours) for way in ways)
    return any(float(one) <= limit * golden.norm for one in apart)
