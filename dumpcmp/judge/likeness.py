"""Checkers of likeness, PCC and cosine: they pass what is alike, and say what that does not see."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dumpcmp.judge.checkers import AllCloseValueChecker
from dumpcmp.judge.conditions import INEXACT, Checker, Conditions, exact, num_differing, verdict
from dumpcmp.judge.rounding import RoundingChecker
from dumpcmp.judge.tolerances import (
    OUTLIER,
    SCALE,
    check_likeness,
    check_tolerances,
    credible,
)
from dumpcmp.nouns.row import USUAL, Closeness, Judgement, Metrics, Verdict, Why
from dumpcmp.nouns.value import Kind


@dataclass(frozen=True, slots=True)
class AutomaticValueChecker:
    """Judges booleans by dissimilarity, integers by equality, one float by closeness, more by PCC.

    A constant has no PCC: it passes where it is close. PCC is blind to scale and offset
    (2x + 5 has a PCC of 1) and to errors that are small beside the value, so a value that passes
    by PCC and would fail by `RoundingChecker` passes with a sentence that says so.
    """

    pcc: float = 0.99
    rtol: float = 1e-5
    atol: float = 1e-8
    dissimilarity_threshold: float = 1e-3

    def __post_init__(self) -> None:
        check_likeness(pcc=self.pcc)
        check_tolerances(
            rtol=self.rtol, atol=self.atol, dissimilarity_threshold=self.dissimilarity_threshold
        )

    @property
    def closeness(self) -> Closeness:
        """The tolerance for single elements and constants."""
        return Closeness(self.rtol, self.atol)

    @property
    def unseen(self) -> str:
        """What a value that passes may have wrong with it."""
        return (
            f"PCC above {self.pcc:g}, which does not see a scale, an offset or an error of "
            f"{_residue(self.pcc):.2g} of the spread"
        )

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS by the rule for this kind of value."""
        if conditions.kinds == {Kind.BOOL}:
            return self._alike(metrics)
        if not conditions.kinds & INEXACT:
            return exact(metrics)
        if metrics.count == 1 or math.isnan(metrics.pcc):
            return self._close(metrics, conditions)
        if metrics.pcc >= self.pcc:
            return _doubted(f"PCC {metrics.pcc:.6f}", metrics.pcc, metrics, conditions)
        return Judgement(Verdict.FAIL, f"PCC {metrics.pcc:.6f} is below {self.pcc:g}")

    def _close(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """Closeness, which cannot be asked for below one rounding of the coarser dtype."""
        judgement = AllCloseValueChecker(self.rtol, self.atol).close(metrics)
        if judgement.verdict is Verdict.FAIL and metrics.rel_l2 <= conditions.eps:
            return Judgement(Verdict.PASS, f"within one rounding of {conditions.coarser}")
        return judgement

    def _alike(self, metrics: Metrics) -> Judgement:
        """Rogers and Tanimoto's dissimilarity: twice the mismatches over all and them."""
        unlike = 2 * metrics.mismatched / (metrics.count + metrics.mismatched)
        if unlike > self.dissimilarity_threshold:
            reason = f"dissimilarity {unlike:.3g} is above {self.dissimilarity_threshold:g}"
            return Judgement(Verdict.FAIL, reason)
        said = num_differing(metrics)
        return Judgement(Verdict.PASS, said, why=Why.BLIND)


@dataclass(frozen=True, slots=True)
class FullValueChecker(AutomaticValueChecker):
    """Judges like AutomaticValueChecker, and floats by closeness of every element as well."""

    @property
    def unseen(self) -> str:
        """Nothing: every element is close."""
        return ""

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

    def __post_init__(self) -> None:
        check_likeness(cosine=self.cosine)

    @property
    def unseen(self) -> str:
        """What a value that passes may have wrong with it."""
        return (
            f"a cosine above {self.cosine:g}, which does not see a scale or an error of "
            f"{_residue(self.cosine):.2g} of the value"
        )

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS where the directions agree; integers and zeros must be equal."""
        if not conditions.kinds & INEXACT:
            return exact(metrics)
        if math.isnan(metrics.cosine):
            passes = metrics.max_abs_diff == 0
            return verdict(passes, "one side is zero everywhere, the other is not")
        if metrics.cosine >= self.cosine:
            return _doubted(f"cosine {metrics.cosine:.8g}", metrics.cosine, metrics, conditions)
        return Judgement(Verdict.FAIL, f"cosine {metrics.cosine:.8g} is below {self.cosine:g}")


def unseen_by(checker: Checker) -> str:
    """What `checker` passes by and what that does not see; nothing where it sees all."""
    said: str = getattr(checker, "unseen", "")
    return said


def _residue(likeness: float) -> float:
    """What the best scale leaves of a difference, relative to the value, at this likeness."""
    return math.sqrt(max(0.0, 1.0 - likeness**2))


def _doubted(likeness: str, number: float, metrics: Metrics, conditions: Conditions) -> Judgement:
    """PASS; with what it hides where rounding does not explain the difference."""
    ruled = RoundingChecker().check(metrics, conditions)
    if ruled.verdict is not Verdict.FAIL:
        return Judgement(Verdict.PASS)
    hidden = (
        f"{likeness} hides rel_l2 {metrics.rel_l2:.3g} and "
        f"max_abs_diff {metrics.max_abs_diff:.3g} at {list(metrics.worst)}: "
    )
    kind = _kind_of_error(number, metrics, conditions) or "more than rounding explains"
    return Judgement(Verdict.PASS, hidden + kind, why=Why.BLIND)


def _kind_of_error(number: float, metrics: Metrics, conditions: Conditions) -> str:
    """What a difference that is no rounding looks like, if it has a look.

    A likeness of p leaves a residue of sqrt(1 - p^2) after the best scale and offset. A rel_l2 far
    above it is a scale or an offset; an element that is off by golden's rms is an outlier.
    """
    residue = _residue(number)
    if metrics.rel_l2 > max(SCALE * residue, credible(conditions.eps)):
        return "the sides differ by a scale or an offset"
    rms = metrics.golden.norm / math.sqrt(metrics.num_finite)
    if metrics.max_abs_diff > max(1.0, OUTLIER * residue) * rms:
        return "single elements are far off"
    return ""
