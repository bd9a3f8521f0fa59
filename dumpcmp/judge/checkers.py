"""Checkers with tolerances that a user states: equality, closeness, a reference."""

from __future__ import annotations

from dataclasses import dataclass

from dumpcmp.judge.conditions import INEXACT, Conditions, exact, verdict
from dumpcmp.judge.tolerances import check_tolerances, credible
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.row import (
    EXACTLY,
    USUAL,
    Closeness,
    Judgement,
    Metrics,
    ReferenceErrors,
    Verdict,
)
from dumpcmp.nouns.spoken import counted


@dataclass(frozen=True, slots=True)
class ExactChecker:
    """Passes equal numbers: -0.0 equals 0.0, and a NaN any NaN, whatever their bits."""

    closeness: Closeness = EXACTLY

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:  # noqa: ARG002
        """PASS where no element differs."""
        return exact(metrics)


@dataclass(frozen=True, slots=True)
class AllCloseValueChecker:
    """Passes where every element is within ``atol + rtol * |golden|``; integers must be equal."""

    rtol: float = 1e-5
    atol: float = 1e-8

    def __post_init__(self) -> None:
        check_tolerances(rtol=self.rtol, atol=self.atol)

    @property
    def closeness(self) -> Closeness:
        """The tolerance."""
        return Closeness(self.rtol, self.atol)

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS where no element is outside the tolerance."""
        return self.close(metrics) if conditions.kinds & INEXACT else exact(metrics)

    def close(self, metrics: Metrics) -> Judgement:
        """PASS where no element is outside the tolerance, whatever its kind."""
        if not metrics.exact and metrics.rel_l2:
            said = "a Summary does not tell how many elements lie outside rtol and atol"
            return Judgement(Verdict.INCONCLUSIVE, said)
        elements = counted(metrics.count, "element")
        reason = (
            f"{metrics.mismatched} of {elements} outside rtol {self.rtol:g}, "
            f"atol {self.atol:g}; max_abs_diff {metrics.max_abs_diff:.3g} at {list(metrics.worst)}"
        )
        return verdict(not metrics.mismatched, reason)


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

    def __post_init__(self) -> None:
        check_tolerances(
            multiplier=self.multiplier,
            short_multiplier=self.short_multiplier,
            small_multiplier=self.small_multiplier,
            small=self.small,
            floor=self.floor,
            credible=self.credible or 0.0,
        )

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
