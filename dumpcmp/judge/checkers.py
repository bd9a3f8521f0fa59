"""Checkers with tolerances that a user states: equality, closeness, PCC, cosine, a reference."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dumpcmp.judge.conditions import INEXACT, Conditions, exact, verdict
from dumpcmp.judge.tolerances import OUTLIER, SCALE, credible
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.row import (
    EXACTLY,
    USUAL,
    Closeness,
    Judgement,
    Metrics,
    ReferenceErrors,
    Verdict,
    Why,
)
from dumpcmp.nouns.value import Kind


@dataclass(frozen=True, slots=True)
class ExactChecker:
    """Passes what is equal, element by element; -0.0 equals 0.0."""

    closeness: Closeness = EXACTLY

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:  # noqa: ARG002
        """PASS where no element differs."""
        return exact(metrics)


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
        if not metrics.exact and metrics.rel_l2:
            said = "a Summary does not tell how many elements lie outside rtol and atol"
            return Judgement(Verdict.INCONCLUSIVE, said)
        reason = (
            f"{metrics.mismatched} of {metrics.count} elements outside rtol {self.rtol:g}, "
            f"atol {self.atol:g}; max_abs_diff {metrics.max_abs_diff:.3g} at {list(metrics.worst)}"
        )
        return verdict(not metrics.mismatched, reason)


@dataclass(frozen=True, slots=True)
class AutomaticValueChecker:
    """Judges booleans by dissimilarity, integers by equality, one float by closeness, more by PCC.

    A constant has no PCC: it passes where it is close. PCC is blind to scale and offset
    (2x + 5 has a PCC of 1), so a value that passes by PCC while rel_l2 or max_abs_diff say
    otherwise passes with a sentence that says so. Prefer `RoundingChecker` where both sides ran
    the same op.
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
            return exact(metrics)
        if metrics.count == 1 or math.isnan(metrics.pcc):
            return self._close(metrics, conditions)
        if metrics.pcc >= self.pcc:
            unseen = _unseen_by_pcc(metrics, conditions)
            return Judgement(Verdict.PASS, unseen, why=Why.BLIND if unseen else Why.PLAIN)
        return Judgement(Verdict.FAIL, f"PCC {metrics.pcc:.6f} is below {self.pcc:g}")

    def _close(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """Closeness, which cannot be asked for below one rounding of the coarser dtype."""
        judgement = AllCloseValueChecker(self.rtol, self.atol)._close(metrics)
        if judgement.verdict is Verdict.FAIL and metrics.rel_l2 <= conditions.eps:
            return Judgement(Verdict.PASS, f"within one rounding of {conditions.coarser}")
        return judgement

    def _alike(self, metrics: Metrics) -> Judgement:
        """Rogers and Tanimoto's dissimilarity: twice the mismatches over all and them."""
        unlike = 2 * metrics.mismatched / (metrics.count + metrics.mismatched)
        reason = f"dissimilarity {unlike:.3g} is above {self.dissimilarity_threshold:g}"
        return verdict(unlike <= self.dissimilarity_threshold, reason)


def _unseen_by_pcc(metrics: Metrics, conditions: Conditions) -> str:
    """What is wrong with a pair that correlates well; nothing where rounding may explain it.

    A PCC of p leaves a residue of sqrt(1 - p^2) after the best scale and offset. A rel_l2 far above
    it is a scale or an offset; an element that is off by golden's rms is an outlier.
    """
    numbers = (
        f"PCC {metrics.pcc:.6f} hides rel_l2 {metrics.rel_l2:.3g} and "
        f"max_abs_diff {metrics.max_abs_diff:.3g} at {list(metrics.worst)}: "
    )
    residue = math.sqrt(max(0.0, 1.0 - metrics.pcc**2))
    if metrics.rel_l2 > max(SCALE * residue, credible(conditions.eps)):
        return numbers + "the sides differ by a scale or an offset"
    rms = metrics.golden.norm / math.sqrt(metrics.num_finite)
    if metrics.max_abs_diff > max(1.0, OUTLIER * residue) * rms:
        return numbers + "single elements are far off"
    return ""


@dataclass(frozen=True, slots=True)
class FullValueChecker(AutomaticValueChecker):
    """Judges like AutomaticValueChecker, and floats by closeness of every element as well."""

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS where both rules pass."""
        judgement = AutomaticValueChecker.check(self, metrics, conditions)
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
            return exact(metrics)
        if math.isnan(metrics.cosine):
            passes = metrics.max_abs_diff == 0
            return verdict(passes, "one side is zero everywhere, the other is not")
        reason = f"cosine {metrics.cosine:.8g} is below {self.cosine:g}"
        return verdict(metrics.cosine >= self.cosine, reason)


@dataclass(frozen=True, slots=True)
class Fp64Checker:
    """Holds the target's error against golden's own, both measured from a finer reference.

    The target may be `multiplier` times as wrong as golden: `short_multiplier` times for 16-bit
    dtypes, `small_multiplier` times where chance weighs more, in fewer than `small` elements and
    in images of one pixel. One that is more accurate than golden passes. A golden that is itself
    wrong beyond `credible` of the reference's rms proves nothing: INCONCLUSIVE.
    """

    multiplier: float = 2.0
    short_multiplier: float = 3.0
    small_multiplier: float = 3.0
    small: int = 1000
    floor: float = 1e-5  # error that is always admissible, relative to the reference's rms
    credible: float | None = None  # None: half of golden's digits, the root of its dtype's eps
    closeness: Closeness = USUAL

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS where the target's error is not much larger than golden's."""
        if not conditions.kinds & INEXACT:
            return exact(metrics)
        errors = conditions.reference
        if errors is None:
            raise CheckError(
                "Fp64Checker needs a run of golden in higher precision",
                hint="verify: reference='float64'; compare: --reference",
            )
        limit = self._credible(conditions) * errors.rms
        if not errors.golden <= limit:
            reason = f"golden itself is {errors.golden:.3g} off the reference, above {limit:.3g}"
            return Judgement(Verdict.INCONCLUSIVE, reason)
        reason = (
            f"error {errors.target:.3g} against the reference is {errors.ratio:.3g} times "
            f"golden's {errors.golden:.3g}"
        )
        return verdict(errors.target <= self._limit(metrics.count, conditions, errors), reason)

    def _credible(self, conditions: Conditions) -> float:
        return credible(conditions.golden.eps) if self.credible is None else self.credible

    def _limit(self, count: int, conditions: Conditions, errors: ReferenceErrors) -> float:
        """The largest error that the target may have."""
        small = count < self.small or (
            len(conditions.shape) == 4 and conditions.shape[2:] == (1, 1)
        )
        allowed = [self.multiplier]
        if conditions.golden.nbytes <= 2:
            allowed.append(self.short_multiplier)
        if small:
            allowed.append(self.small_multiplier)
        # Of few elements golden may be exact by luck, and the target one rounding away.
        floor = max(self.floor, conditions.eps) if small else self.floor
        return max(allowed) * errors.golden + floor * errors.rms
