"""Runs what an optimizer did again: the rule that made golden's weight, on the target's gradients.

Which optimizer it was nobody recorded. But a rule that gives golden's weight to the last bits, of
its gradients and of what it was before, is the one that ran, as far as these numbers can tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.replay import Replay
from dumpcmp.replay.holding import HeldValue
from dumpcmp.replay.rating import Rerun, norm_of

CANNOT_TELL = "how golden's optimizer made it of its gradients cannot be told"
STAYED = "it is as it was, and golden's optimizer would have changed it"
_MISSED = 1 / 8  # of the elements that golden changed: as many others may be a matter of rounding
_EACH = 4  # elements for each number that is fitted: with fewer, any rule fits
_FEW = 32  # elements that leave it to others to tell their rule
_SAMPLE = 1 << 16  # elements by which the numbers of a rule are found
_AT_ONCE = 1 << 22  # elements
_LEAST = 1e-12  # of the largest direction: one below it is made of the others
# What is customary, the default of torch first: nobody can tell two of them apart that fit both.
_BETAS = ((0.9, 0.999), (0.9, 0.95), (0.9, 0.98), (0.9, 0.99), (0.95, 0.95), (0.8, 0.99))
_FLOORS = (1e-8, 1e-6, 1e-5, 1e-10, 1e-15)


class Course(NamedTuple):
    """A weight of one run, flat: all that it was, and the gradients that came in between."""

    weights: list[Tensor]
    gradients: list[list[Tensor]]  # since each of `weights` but the last; they are added up
    is_whole: bool = False  # nothing of the run comes before

    def sampled(self) -> Course:
        """Some elements of it, from all over."""
        return self._at(slice(None, None, max(1, self.weights[0].numel() // _SAMPLE)))

    def pieces(self) -> Iterator[Course]:
        """All of it, some elements at a time."""
        for start in range(0, max(1, self.weights[0].numel()), _AT_ONCE):
            yield self._at(slice(start, start + _AT_ONCE))

    def _at(self, some: slice) -> Course:
        gradients = [[each[some] for each in since] for since in self.gradients]
        return Course([each[some] for each in self.weights], gradients, self.is_whole)


class _UpdateRule(NamedTuple):
    """How an optimizer may have made a weight: a sum of directions, times numbers that are fit."""

    decays: bool = False  # a share of the weight itself is taken away
    goes_on: bool = False  # as it went in the last update
    betas: tuple[float, float] | None = None  # of Adam
    floor: float = 0.0

    def fits(self, course: Course) -> bool:
        """Whether all that it needs was recorded."""
        if self.goes_on and len(course.weights) < 3:
            return False
        is_known = all(course.gradients if self.betas else course.gradients[-1:])
        return is_known and (self.betas is None or course.is_whole)

    def directions(self, course: Course) -> Tensor:
        """Those that a weight may have gone, in columns."""
        before = course.weights[-2].double()
        if self.betas is None:
            found = [gradient.double() for gradient in course.gradients[-1]]
        else:
            found = [_adam([some[-1] for some in course.gradients], self.betas, self.floor)]
        found += [before] if self.decays else []
        found += [before - course.weights[-3].double()] if self.goes_on else []
        return torch.stack(found, 1)


def _adam(gradients: Sequence[Tensor], betas: tuple[float, float], floor: float) -> Tensor:
    """The direction of Adam after so many gradients."""
    first = second = torch.zeros_like(gradients[0], dtype=torch.float64)
    for gradient in gradients:
        wide = gradient.double()
        first = betas[0] * first + (1 - betas[0]) * wide
        second = betas[1] * second + (1 - betas[1]) * wide * wide
    number = len(gradients)
    spread = (second / (1 - betas[1] ** number)).sqrt()
    return first / (1 - betas[0] ** number) / (spread + floor)


def _rules() -> Iterator[_UpdateRule]:
    for goes_on in (False, True):
        for decays in (False, True):
            yield _UpdateRule(decays, goes_on)
    for betas in _BETAS:
        for floor in _FLOORS:
            yield _UpdateRule(True, False, betas, floor)


def replayed_update(
    golden: Course, target: Course, slot: str, peer: Callable[[], Course | None]
) -> Replay:
    """What the target's weight differs in from what golden's optimizer makes of its gradients.

    Zeros tell nothing, and a few elements little: for those another of its weights, `peer`, is
    asked.
    """
    is_idle = not any(bool(gradient.any()) for gradient in golden.gradients[-1])
    teller = peer() if is_idle or golden.weights[-1].numel() < _FEW else golden
    for rule in _rules():
        if teller is None or not all(rule.fits(one) for one in (golden, target, teller)):
            continue
        if len({len(one.gradients[-1]) for one in (golden, target, teller)}) > 1:
            continue  # a number for each gradient cannot be taken from one with fewer of them
        factors = _fit(rule, teller.sampled(), slot)
        if factors is not None and not wrong(_held(rule, golden, factors, slot)):
            if _should_have_moved(rule, golden, target, factors):
                return Replay(unknown=STAYED)
            return _held(rule, target, factors, slot)
    return Replay(unknown=CANNOT_TELL)


def _should_have_moved(
    rule: _UpdateRule, golden: Course, target: Course, factors: _Factors
) -> bool:
    """Whether the target's weight is as it was, where the rule would have changed it like golden's.

    However small an update is: that nothing was added is known by every bit.
    """
    if not torch.equal(target.weights[-1], target.weights[-2]):
        return False
    moved = int((golden.weights[-1] != golden.weights[-2]).sum())
    missed = 0
    for piece in target.pieces():
        before = piece.weights[-2]
        made = before.double() + rule.directions(piece) @ factors.numbers
        missed += int((made.to(before.dtype) != before).sum())
    return missed > _MISSED * moved


class _Factors(NamedTuple):
    """The numbers of a rule, and how much is known of them."""

    numbers: Tensor
    doubt: Tensor  # their covariance: each element of the weight was rounded, by half a spacing


def _fit(rule: _UpdateRule, course: Course, slot: str) -> _Factors | None:
    """The numbers with which `rule` made the weight of `course`; None where it did not."""
    directions = rule.directions(course)
    if course.weights[-1].numel() < _EACH * directions.shape[1]:
        return None
    if not bool(torch.isfinite(directions).all()):
        return None
    went = course.weights[-1].double() - course.weights[-2].double()
    scale = torch.linalg.vector_norm(directions, dim=0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    unit = directions / scale
    inverse = torch.linalg.pinv(unit.T @ unit, rtol=_LEAST, hermitian=True)
    numbers = inverse @ (unit.T @ went) / scale
    latest = course.weights[-1]
    rounded = torch.finfo(latest.dtype).eps / 2 * norm_of(latest.double()) / latest.numel() ** 0.5
    factors = _Factors(numbers, inverse / torch.outer(scale, scale) * rounded**2)
    return None if wrong(_held(rule, course, factors, slot)) else factors


def _held(rule: _UpdateRule, course: Course, factors: _Factors, slot: str) -> Replay:
    """The weight of `course` against what the rule makes of it with these numbers."""
    held = HeldValue(slot, course.weights[-1])
    for piece in course.pieces():
        directions = rule.directions(piece)
        expected = piece.weights[-2].double() + directions @ factors.numbers
        doubt = math.sqrt(max(0.0, float((directions.T @ directions * factors.doubt).sum())))
        norm = norm_of(expected)
        noise = {slot: doubt / norm if norm else 0.0}
        unfit = held.add(Rerun({slot: expected}, noise=noise, num_ops=0), piece.weights[-1])
        if unfit is not None:
            return unfit
    return held.replay()
