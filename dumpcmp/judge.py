"""Turns Metrics into a Verdict: what numbers are admissible for which dtypes, and how deep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dumpcmp.dtypes import Dtype, Kind
from dumpcmp.errors import CheckError
from dumpcmp.outcome import EXACTLY, USUAL, Closeness, Judgement, Metrics, Verdict

INEXACT = frozenset((Kind.FLOAT, Kind.COMPLEX))  # kinds whose arithmetic rounds


class Arithmetic(StrEnum):
    """How much rounding an op may do between its inputs and its outputs."""

    MOVES = "moves"  # copies, views, comparisons: the output has no rounding of its own
    ROUNDS = "rounds"  # one op of its kind: each output is rounded about once
    COMPOSITE = "composite"  # several ops in one, such as attention, or a whole module


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a Checker may know of a pair besides its Metrics."""

    golden: Dtype
    target: Dtype
    depth: int = 0  # residual blocks, or reductions, that lie before the op
    inputs_equal: bool = False  # all inputs of the op were compared and are the same to the bit
    arithmetic: Arithmetic = Arithmetic.COMPOSITE

    @property
    def coarser(self) -> Dtype:
        """The dtype that rounds more."""
        return max(self.golden, self.target, key=lambda dtype: dtype.eps)

    @property
    def eps(self) -> float:
        """The rounding of the coarser dtype."""
        return self.coarser.eps

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


def judge(metrics: Metrics, conditions: Conditions, checker: Checker) -> Judgement:
    """Hold `metrics` against `checker`. Only PASS passes; absence of evidence is not PASS.

    Same bits pass and NaN or Inf on one side only fail, whatever the checker. DTYPE says that the
    sides are as near as the checker wants, and of different dtypes.
    """
    if not metrics.count:
        return Judgement(Verdict.EMPTY, "no elements")
    if not metrics.nonfinite_agree:
        return Judgement(Verdict.NONFINITE, _nonfinite(metrics))
    if metrics.equal:
        return Judgement(Verdict.PASS)
    judgement = (
        checker.check(metrics, conditions) if metrics.num_finite else Judgement(Verdict.PASS)
    )
    if judgement.verdict is Verdict.PASS and conditions.golden != conditions.target:
        said = f"golden is {conditions.golden}, the target {conditions.target}"
        return Judgement(Verdict.DTYPE, said)
    return judgement


def _nonfinite(metrics: Metrics) -> str:
    golden, target = metrics.golden, metrics.target
    return (
        f"NaN: {golden.num_nan} in golden, {target.num_nan} in the target; "
        f"Inf: {golden.num_inf} in golden, {target.num_inf} in the target"
    )


def _verdict(passes: bool, reason: str) -> Judgement:
    return Judgement(Verdict.PASS) if passes else Judgement(Verdict.FAIL, reason)


def _exact(metrics: Metrics) -> Judgement:
    reason = f"{metrics.mismatched} of {metrics.count} elements differ"
    return _verdict(not metrics.mismatched, reason)


@dataclass(frozen=True, slots=True)
class ExactChecker:
    """Passes what is equal, element by element; -0.0 equals 0.0."""

    closeness: Closeness = EXACTLY

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:  # noqa: ARG002
        """PASS where no element differs."""
        return _exact(metrics)


@dataclass(frozen=True, slots=True)
class AllCloseValueChecker:
    """Passes where every element is within ``atol + rtol * |golden|``. For floats only."""

    rtol: float = 1e-5
    atol: float = 1e-8

    @property
    def closeness(self) -> Closeness:
        """The tolerance."""
        return Closeness(self.rtol, self.atol)

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS where no element is outside the tolerance."""
        if not conditions.kinds & INEXACT:
            raise CheckError(
                f"AllCloseValueChecker cannot judge {conditions.golden} values",
                hint="integers and booleans are equal or not: use AutomaticValueChecker",
            )
        return self._close(metrics)

    def _close(self, metrics: Metrics) -> Judgement:
        reason = (
            f"{metrics.mismatched} of {metrics.count} elements outside rtol {self.rtol:g}, "
            f"atol {self.atol:g}; max_abs_diff {metrics.max_abs_diff:.3g} at {list(metrics.worst)}"
        )
        return _verdict(not metrics.mismatched, reason)


@dataclass(frozen=True, slots=True)
class AutomaticValueChecker:
    """Judges booleans by dissimilarity, integers by equality, one float by closeness, more by PCC.

    A constant has no PCC: it passes where it is close. PCC is blind to scale and offset
    (2x + 5 has a PCC of 1), so prefer `RoundingChecker` where both sides ran the same op.
    """

    pcc: float = 0.99
    rtol: float = 1e-5
    atol: float = 1e-8
    dissimilarity_threshold: float = 1e-3

    @property
    def closeness(self) -> Closeness:
        """The tolerance for single elements and constants."""
        return Closeness(self.rtol, self.atol)

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS by the rule for this kind of value."""
        if conditions.kinds == {Kind.BOOL}:
            return self._alike(metrics)
        if not conditions.kinds & INEXACT:
            return _exact(metrics)
        if metrics.count == 1 or math.isnan(metrics.pcc):
            return AllCloseValueChecker(self.rtol, self.atol)._close(metrics)
        reason = f"PCC {metrics.pcc:.6f} is below {self.pcc:g}"
        return _verdict(metrics.pcc >= self.pcc, reason)

    def _alike(self, metrics: Metrics) -> Judgement:
        """Rogers and Tanimoto's dissimilarity: twice the mismatches over all and them."""
        unlike = 2 * metrics.mismatched / (metrics.count + metrics.mismatched)
        reason = f"dissimilarity {unlike:.3g} is above {self.dissimilarity_threshold:g}"
        return _verdict(unlike <= self.dissimilarity_threshold, reason)


@dataclass(frozen=True, slots=True)
class FullValueChecker:
    """Judges like AutomaticValueChecker, and floats by closeness of every element as well."""

    pcc: float = 0.99
    rtol: float = 1e-5
    atol: float = 1e-8
    dissimilarity_threshold: float = 1e-3

    @property
    def closeness(self) -> Closeness:
        """The tolerance."""
        return Closeness(self.rtol, self.atol)

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS where both rules pass."""
        automatic = AutomaticValueChecker(
            self.pcc, self.rtol, self.atol, self.dissimilarity_threshold
        )
        judgement = automatic.check(metrics, conditions)
        if judgement.verdict is not Verdict.PASS or not conditions.kinds & INEXACT:
            return judgement
        return AllCloseValueChecker(self.rtol, self.atol).check(metrics, conditions)


@dataclass(frozen=True, slots=True)
class CosineChecker:
    """Passes where the cosine of both sides is at least `cosine`. Blind to scale."""

    cosine: float = 0.999
    closeness: Closeness = USUAL

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS where the directions agree; integers and zeros must be equal."""
        if not conditions.kinds & INEXACT:
            return _exact(metrics)
        if math.isnan(metrics.cosine):
            passes = metrics.max_abs_diff == 0
            return _verdict(passes, "one side is zero everywhere, the other is not")
        reason = f"cosine {metrics.cosine:.8g} is below {self.cosine:g}"
        return _verdict(metrics.cosine >= self.cosine, reason)


@dataclass(frozen=True, slots=True)
class Fp64Checker:
    """Holds the target's error against golden's own, both measured from a finer reference.

    `golden_error` and `target_error` are rmse against the reference. The target may be
    `multiplier` times as wrong as golden; one that is more accurate than golden passes. A golden
    that is itself wrong beyond `credible` of the reference's rms proves nothing: INCONCLUSIVE.
    """

    golden_error: float
    target_error: float
    reference_rms: float
    multiplier: float = 2.0
    floor: float = 1e-5  # error that is always admissible, relative to the reference's rms
    credible: float = 0.5
    closeness: Closeness = USUAL

    @property
    def ratio(self) -> float:
        """The target's error in units of golden's."""
        if not self.golden_error:
            return math.inf if self.target_error else 1.0
        return self.target_error / self.golden_error

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS where the target's error is not much larger than golden's."""
        if not conditions.kinds & INEXACT:
            return _exact(metrics)
        if not self.golden_error <= self.credible * self.reference_rms:
            reason = f"golden itself is {self.golden_error:.3g} off the reference"
            return Judgement(Verdict.INCONCLUSIVE, reason)
        limit = self.multiplier * self.golden_error + self.floor * self.reference_rms
        reason = (
            f"error {self.target_error:.3g} against the reference is {self.ratio:.3g} times "
            f"golden's {self.golden_error:.3g}"
        )
        return _verdict(self.target_error <= limit, reason)


# Multiple of eps by the coarser dtype's bytes: wide dtypes add rounding of long sums to their own.
_MULTIPLES = {1: 4.0, 2: 4.0, 4: 16.0, 8: 16.0, 16: 16.0}


@dataclass(frozen=True, slots=True)
class RoundingChecker:
    """The default: passes what rounding explains, given the dtypes and the op's depth.

    Rounding noise between two correct runs grows with the square root of the depth:
    rel_l2 <= C * eps(coarser dtype) * sqrt(depth + 1). Where all inputs of one op are the same to
    the bit, noise has no depth to come from, and the limit is what that op alone may round.
    docs/design/rounding.md has the evidence for every number here.
    """

    closeness: Closeness = USUAL

    def limit(self, conditions: Conditions) -> float:
        """The largest rel_l2 that rounding explains."""
        multiple = _MULTIPLES[conditions.coarser.nbytes]
        return multiple * conditions.eps * math.sqrt(conditions.depth + 1)

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS within the limit; integers, booleans and moved values must be equal."""
        if not conditions.eps:
            return _exact(metrics)
        limit = self.limit(conditions)
        reason = f"rel_l2 {metrics.rel_l2:.3g} is above {limit:.3g}"
        return _verdict(metrics.rel_l2 <= limit, reason)
