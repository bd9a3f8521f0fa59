"""The default rule: passes what rounding explains, given dtypes, depth and inputs."""

from __future__ import annotations

from dataclasses import dataclass, field

from dumpcmp.judge.checkers import Fp64Checker
from dumpcmp.judge.conditions import INEXACT, Conditions, exact, verdict
from dumpcmp.judge.tolerances import (
    CHANCE,
    DOUBT,
    FLOAT32_EPS,
    GAIN,
    HIDDEN,
    LEAF_HALF,
    MOMENTS,
    SHORT_EPS,
    SUBNORMAL,
    WHOLE,
    WIDE_NOISE,
    noise,
)
from dumpcmp.nouns.arithmetic import Arithmetic
from dumpcmp.nouns.row import USUAL, Closeness, Judgement, Metrics, Verdict


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
        apart = max(noise(conditions.eps, conditions.depth), MOMENTS * conditions.apart)
        usual = apart * conditions.spread
        return max(usual, self._wide_limit(conditions))

    def _wide_limit(self, conditions: Conditions) -> float:
        """What one op rounds that sums in float32: more where its terms all but cancel."""
        return WIDE_NOISE * min(conditions.own_eps, FLOAT32_EPS) * conditions.cancellation

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS within the limit; integers, booleans and moved values must be equal."""
        judgement = self._whole(metrics, conditions)
        limit = max(conditions.own_eps, HIDDEN * judgement.limit)  # which may be no number
        if judgement.verdict is not Verdict.PASS or conditions.usual <= limit:
            return judgement
        said = f"rel_l2 is {metrics.rel_l2:.3g} by its largest elements alone: half of those that"
        return Judgement(Verdict.FAIL, f"{said} differ are {conditions.usual:.3g} off", limit)

    def _whole(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """The same by what the whole is off."""
        if not conditions.eps:
            return exact(metrics)
        if conditions.inputs_equal and conditions.arithmetic is Arithmetic.MOVES:
            is_cast = conditions.golden != conditions.target
            nearest = is_cast and metrics.exact and metrics.max_ulp <= LEAF_HALF
            said = "this op only moves its inputs, which are equal"
            return verdict(not metrics.max_abs_diff or nearest, said)
        if conditions.inputs_equal and conditions.arithmetic is Arithmetic.ROUNDS:
            alone = self._alone(metrics, conditions)
            if alone is not None:
                return alone
        limit = self.limit(conditions)
        reason = f"rel_l2 {metrics.rel_l2:.3g} is above {limit:.3g}"
        return verdict(metrics.rel_l2 <= limit, reason, limit)

    def _alone(self, metrics: Metrics, conditions: Conditions) -> Judgement | None:
        """The judgement on one op with equal inputs, where its output is short and not tiny.

        Such an op computes in a wider dtype and rounds each element once: not by much, in no row
        by much, and not all to one side.
        """
        eps = conditions.own_eps
        if eps < SHORT_EPS:
            limit = self._wide_limit(conditions)
            reason = f"inputs are equal, but rel_l2 {metrics.rel_l2:.3g} is above {limit:.3g}"
            return verdict(metrics.rel_l2 <= limit, reason, limit)
        if metrics.golden_rms < SUBNORMAL.get(conditions.golden.name, 0.0):
            return None
        for name, found, limit in (
            ("rel_l2", metrics.rel_l2, WHOLE * eps),
            ("max_row_err", metrics.max_row_err, WHOLE * eps),
            ("gain", abs(metrics.gain), GAIN * eps),
        ):
            doubt = 1 + DOUBT * metrics.confidence  # of an estimate; a Summary knows no rows
            if found > limit * doubt and (name != "gain" or abs(metrics.gain_score) > CHANCE):
                reason = f"inputs are equal, but {name} {found:.3g} is above {limit:.3g}"
                return Judgement(Verdict.FAIL, reason, WHOLE * eps)
        return Judgement(Verdict.PASS, limit=WHOLE * eps)


@dataclass(frozen=True, slots=True)
class ReferenceChecker:
    """The default where there is a reference: what is nearer to it than golden is no failure.

    What is farther from it fails where `Fp64Checker` or `RoundingChecker` says so.
    """

    fp64: Fp64Checker = field(default_factory=Fp64Checker)
    rounding: RoundingChecker = field(default_factory=RoundingChecker)
    closeness: Closeness = USUAL

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS where the reference, or rounding, explains the difference."""
        errors = conditions.reference
        if errors is None or not conditions.kinds & INEXACT:
            return self.rounding.check(metrics, conditions)
        judgement = self.fp64.check(metrics, conditions)
        if judgement.verdict is not Verdict.PASS or errors.ratio <= 1:
            return judgement
        return self.rounding.check(metrics, conditions)
