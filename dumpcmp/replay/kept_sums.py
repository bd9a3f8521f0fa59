"""Makes what an optimizer keeps of a weight again: sums of its gradients, or of their squares.

Momentum and moments are such sums, whatever the optimizer is called. The factors that give golden's
to the last bits, of its gradients, must give the target's, of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.replay import Replay
from dumpcmp.replay.holding import HeldValue
from dumpcmp.replay.rating import Rerun, norm_of, ratio_of

CANNOT_SUM = "how golden's optimizer made it of its gradients cannot be told"
_EACH = 4  # elements for each factor that is fitted: with fewer, any factors fit
_SAMPLE = 1 << 16  # elements by which factors are found
_AT_ONCE = 1 << 18  # elements
_LEAST = 1e-12  # of the largest direction: one below it is made of the others


class KeptCourse(NamedTuple):
    """What one run keeps of a weight, and what it may have made it of, in order; all flat."""

    kept: Tensor
    gradients: list[Tensor]
    weights: list[Tensor]  # that each is the gradient of; none where those are not asked

    def sampled(self) -> KeptCourse:
        """Some elements of it, from all over."""
        return self._at(slice(None, None, max(1, self.kept.numel() // _SAMPLE)))

    def pieces(self) -> Iterator[KeptCourse]:
        """All of it, some elements at a time."""
        for start in range(0, max(1, self.kept.numel()), _AT_ONCE):
            yield self._at(slice(start, start + _AT_ONCE))

    def _at(self, some: slice) -> KeptCourse:
        given = ([each[some] for each in every] for every in (self.gradients, self.weights))
        return KeptCourse(self.kept[some], *given)


class _Decay(StrEnum):
    """Whether a share of the weight was added to each gradient."""

    NONE = "none"
    FIRST = "first"  # it was, and the weights since are made of the first one and of gradients
    EACH = "each"


class _SumRule(NamedTuple):
    """Of what a sum is made."""

    squares: bool
    decay: _Decay

    def terms(self, course: KeptCourse) -> Tensor:
        """What is added up, but for factors, in columns."""
        gradients = [each.double() for each in course.gradients]
        most = {_Decay.NONE: 0, _Decay.FIRST: 1}.get(self.decay)
        weights = [each.double() for each in course.weights[:most]]
        if not self.squares:
            return torch.stack([*gradients, *weights], 1)
        squares = [each * each for each in (*gradients, *weights)]
        both = [one * other for one, other in zip(gradients, weights, strict=False)]
        return torch.stack([*squares, *both], 1)


_RULES = [
    _SumRule(False, _Decay.NONE), _SumRule(True, _Decay.NONE), _SumRule(False, _Decay.FIRST),
    _SumRule(False, _Decay.EACH), _SumRule(True, _Decay.EACH),
]  # fmt: skip


class _SumFactors(NamedTuple):
    """The factors of terms, and how much is known of them."""

    numbers: Tensor
    doubt: Tensor  # their covariance: each element of the sum was rounded


def replayed_sum(
    golden: KeptCourse, target: KeptCourse, slot: str, peer: Callable[[], KeptCourse | None]
) -> Replay:
    """What the target keeps beside what golden's optimizer makes of the target's gradients.

    Where few elements tell little, the same of another weight is asked, `peer`.
    """
    for rule in _RULES:
        if rule.decay is not _Decay.NONE and not golden.weights:
            continue
        for teller in (golden, peer()):
            factors = None if teller is None else _fit(rule, teller.sampled(), slot)
            if factors is None or len(golden.gradients) != len(target.gradients):
                continue
            if _has_as_many(rule, golden, factors) and not wrong(
                _held(rule, golden, factors, slot)
            ):
                return _held(rule, target, factors, slot)
    return Replay(unknown=CANNOT_SUM)


def _has_as_many(rule: _SumRule, course: KeptCourse, factors: _SumFactors) -> bool:
    return rule.terms(course).shape[1] == len(factors.numbers)


def _fit(rule: _SumRule, course: KeptCourse, slot: str) -> _SumFactors | None:
    """The factors with which `rule` gives what `course` keeps; None where none do."""
    terms = rule.terms(course)
    if len(terms) < _EACH * terms.shape[1] or not bool(torch.isfinite(terms).all()):
        return None
    scale = torch.linalg.vector_norm(terms, dim=0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    unit = terms / scale
    inverse = torch.linalg.pinv(unit.T @ unit, rtol=_LEAST, hermitian=True)
    numbers = inverse @ (unit.T @ course.kept.double()) / scale
    rounded = _rounding(course) * norm_of(course.kept.double()) / len(terms) ** 0.5
    factors = _SumFactors(numbers, inverse / torch.outer(scale, scale) * rounded**2)
    return None if wrong(_held(rule, course, factors, slot)) else factors


def _rounding(course: KeptCourse) -> float:
    """What so many additions round, each once."""
    eps = float(torch.finfo(course.kept.dtype).eps)
    return eps / 4 * math.sqrt(len(course.gradients))


def _held(rule: _SumRule, course: KeptCourse, factors: _SumFactors, slot: str) -> Replay:
    """What is kept against what the rule makes of its terms with these factors."""
    held = HeldValue(slot, course.kept)
    for piece in course.pieces():
        terms = rule.terms(piece)
        expected = terms @ factors.numbers
        sizes = terms.abs() @ factors.numbers.abs()
        doubt = math.sqrt(max(0.0, float((terms.T @ terms * factors.doubt).sum())))
        norm = norm_of(expected)
        noise = doubt / norm if norm else 0.0
        rerun = Rerun(
            {slot: expected}, {slot: ratio_of(sizes, expected)},
            {slot: math.hypot(noise, _rounding(course))}, num_ops=0, terms={slot: sizes},
        )  # fmt: skip
        unfit = held.add(rerun, piece.kept)
        if unfit is not None:
            return unfit
    return held.replay()
