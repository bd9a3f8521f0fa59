"""What a judgement is made from: Conditions, the Checker, and what comes before it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from dumpcmp.nouns.arithmetic import Arithmetic
from dumpcmp.nouns.quickly import quickly_made
from dumpcmp.nouns.row import (
    Closeness,
    Judgement,
    Metrics,
    ReferenceErrors,
    Verdict,
    Why,
)
from dumpcmp.nouns.spoken import counted, plural
from dumpcmp.nouns.value import Dtype, Kind

INEXACT = frozenset((Kind.FLOAT, Kind.COMPLEX))  # kinds whose arithmetic rounds


@quickly_made
@dataclass(frozen=True, slots=True)
class Conditions:
    """What a Checker may know of a pair besides its Metrics."""

    golden: Dtype
    target: Dtype
    depth: int = 0  # residual blocks, or reductions, that lie before the op
    inputs_equal: bool = False  # all inputs of the op were compared and are the same to the bit
    arithmetic: Arithmetic = Arithmetic.COMPOSITE
    cancellation: float = 1.0  # how much larger the terms of the op's sums are than its output
    spread: float = 1.0  # of a mean: how much larger the numbers are that it is the mean of
    apart: float = 0.0  # of moments: how far apart those numbers are
    usual: float = 0.0  # what half of what differs is off, where few large elements may hide that
    shape: tuple[int, ...] = ()
    reference: ReferenceErrors | None = None  # where there was a run in higher precision
    on_the_way: Dtype | None = None  # the coarsest dtype that the value was computed from, if known

    @property
    def coarser(self) -> Dtype:
        """The dtype that rounds more: of the sides, or of what they were computed from."""
        dtypes = [self.golden, self.target]
        if self.on_the_way is not None and self.kinds & INEXACT:
            dtypes.append(self.on_the_way)
        return max(dtypes, key=lambda dtype: dtype.eps)

    @property
    def eps(self) -> float:
        """The rounding of the coarser dtype."""
        return self.coarser.eps

    @property
    def own_eps(self) -> float:
        """The rounding of the coarser side, whatever it was computed from."""
        return max(self.golden.eps, self.target.eps)

    @property
    def kinds(self) -> set[Kind]:
        """The kinds of both sides."""
        return {self.golden.kind, self.target.kind}


class Checker(Protocol):
    """Says whether Metrics are admissible. Called only where there are finite numbers to judge."""

    @property
    def closeness(self) -> Closeness:
        """The tolerance by which `Metrics.mismatched` is to be counted."""
        ...

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS or FAIL, or INCONCLUSIVE, with a sentence that gives the numbers."""
        ...


def _void(metrics: Metrics) -> Judgement:
    """Of what is nowhere finite: infinities are numbers, as in a mask, and NaN is none."""
    elements, num_nan = counted(metrics.count, "element"), metrics.golden.num_nan
    if num_nan:
        are = plural(num_nan, "is", "are")
        said = f"{num_nan} of {elements} {are} NaN, and no other is finite, on both sides"
        return Judgement(Verdict.INCONCLUSIVE, said, why=Why.VOID)
    said = f"not one of {elements} is finite, on either side"
    return Judgement(Verdict.PASS, said, why=Why.VOID)


def judge(metrics: Metrics, conditions: Conditions, checker: Checker) -> Judgement:
    """Hold `metrics` against `checker`. Only PASS passes; absence of evidence is not PASS.

    Same bits pass and NaN or Inf on one side only fail, whatever the checker. DTYPE says that the
    sides are as near as the checker wants, and of different dtypes.
    """
    if not metrics.count:
        return Judgement(Verdict.EMPTY, "no elements")
    if not metrics.nonfinite_agree:
        return Judgement(Verdict.NONFINITE, _nonfinite(metrics))
    if not metrics.num_finite:
        judgement = _void(metrics)
    elif metrics.equal:
        return Judgement(Verdict.PASS)
    else:
        judgement = checker.check(metrics, conditions)
    if judgement.verdict is Verdict.PASS and math.isinf(metrics.confidence):
        return Judgement(Verdict.INCONCLUSIVE, "kept without a sketch: extremes and moments agree")
    if judgement.verdict is Verdict.PASS and metrics.sample is not None:
        said = f"of {metrics.sample}: nobody has seen the others"
        said = f"{judgement.reason}; {said}" if judgement.reason else said
        judgement = replace(judgement, reason=said)
    if judgement.verdict is Verdict.PASS and conditions.golden != conditions.target:
        said = f"golden is {conditions.golden}, the target {conditions.target}"
        said = f"{said}; {judgement.reason}" if judgement.reason else said
        return replace(judgement, verdict=Verdict.DTYPE, reason=said)
    return judgement


def _nonfinite(metrics: Metrics) -> str:
    golden, target = metrics.golden, metrics.target
    return (
        f"NaN: {golden.num_nan} in golden, {target.num_nan} in the target; "
        f"Inf: {golden.num_inf} in golden, {target.num_inf} in the target"
    )


def verdict(passes: bool, reason: str, limit: float = math.nan) -> Judgement:
    """PASS, or FAIL with the `reason`; `limit` is the rel_l2 that was admissible."""
    return Judgement(Verdict.PASS if passes else Verdict.FAIL, "" if passes else reason, limit)


def exact(metrics: Metrics) -> Judgement:
    """PASS where no element differs."""
    return verdict(not metrics.mismatched, num_differing(metrics) if metrics.mismatched else "")


def num_differing(metrics: Metrics) -> str:
    """How many elements differ, as a sentence."""
    count = metrics.mismatched
    return f"{count} of {counted(metrics.count, 'element')} {plural(count, 'differs', 'differ')}"
