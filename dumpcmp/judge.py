"""Turns Metrics into a Verdict: what numbers are admissible for which dtypes, and how deep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from dumpcmp.arithmetic import Arithmetic
from dumpcmp.dtypes import Dtype, Kind
from dumpcmp.errors import CheckError
from dumpcmp.outcome import EXACTLY, USUAL, Closeness, Judgement, Metrics, Verdict

INEXACT = frozenset((Kind.FLOAT, Kind.COMPLEX))  # kinds whose arithmetic rounds


@dataclass(frozen=True, slots=True)
class ReferenceErrors:
    """How far both sides lie from a reference of higher precision, as rmse, and its own rms."""

    golden: float
    target: float
    rms: float

    @property
    def ratio(self) -> float:
        """The target's error in units of golden's."""
        if not self.golden:
            return math.inf if self.target else 1.0
        return self.target / self.golden


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a Checker may know of a pair besides its Metrics."""

    golden: Dtype
    target: Dtype
    depth: int = 0  # residual blocks, or reductions, that lie before the op
    inputs_equal: bool = False  # all inputs of the op were compared and are the same to the bit
    arithmetic: Arithmetic = Arithmetic.COMPOSITE
    noise: float = 0.0  # rounding of the coarsest dtype on the way to this value
    cancellation: float = 1.0  # how much larger the terms of the op's sums are than its output
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
    if judgement.verdict is Verdict.PASS and math.isinf(metrics.confidence):
        return Judgement(Verdict.INCONCLUSIVE, "kept without a sketch: extremes and moments agree")
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
        if not metrics.exact and metrics.rel_l2:
            said = "a Summary does not tell how many elements lie outside rtol and atol"
            return Judgement(Verdict.INCONCLUSIVE, said)
        reason = (
            f"{metrics.mismatched} of {metrics.count} elements outside rtol {self.rtol:g}, "
            f"atol {self.atol:g}; max_abs_diff {metrics.max_abs_diff:.3g} at {list(metrics.worst)}"
        )
        return _verdict(not metrics.mismatched, reason)


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
            return _exact(metrics)
        if metrics.count == 1 or math.isnan(metrics.pcc):
            return self._close(metrics, conditions)
        if metrics.pcc >= self.pcc:
            return Judgement(Verdict.PASS, _unseen_by_pcc(metrics, conditions))
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
        return _verdict(unlike <= self.dissimilarity_threshold, reason)


HIDES = "hides"  # in the sentence of a pass that other numbers speak against


def _unseen_by_pcc(metrics: Metrics, conditions: Conditions) -> str:
    """What is wrong with a pair that correlates well; nothing where rounding may explain it.

    A PCC of p leaves a residue of sqrt(1 - p^2) after the best scale and offset. A rel_l2 far above
    it is a scale or an offset; an element that is off by golden's rms is an outlier.
    """
    numbers = (
        f"PCC {metrics.pcc:.6f} {HIDES} rel_l2 {metrics.rel_l2:.3g} and "
        f"max_abs_diff {metrics.max_abs_diff:.3g} at {list(metrics.worst)}: "
    )
    residue = math.sqrt(max(0.0, 1.0 - metrics.pcc**2))
    if metrics.rel_l2 > max(3 * residue, math.sqrt(conditions.eps)):
        return numbers + "the sides differ by a scale or an offset"
    rms = metrics.golden.norm / math.sqrt(metrics.num_finite)
    if metrics.max_abs_diff > max(1.0, 16 * residue) * rms:
        return numbers + "single elements are far off"
    return ""


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
            return _exact(metrics)
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
        return _verdict(errors.target <= self._limit(metrics.count, conditions, errors), reason)

    def _credible(self, conditions: Conditions) -> float:
        return math.sqrt(conditions.golden.eps) if self.credible is None else self.credible

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


_FLOAT32 = 2.0**-23
_SHORT = 2.0**-20  # eps above it: a dtype of 16 bits or fewer, whose sums are wider than itself
_MULTIPLES = {True: 4.0, False: 16.0}  # of eps: for short dtypes, for those that sum in their own
_WHOLE = 1.0  # of eps: what one op on equal inputs may round in a short dtype, over all or in a row
_DOUBT = 4.0  # standard deviations by which an estimate must exceed a limit
_GAIN = 1 / 64  # of eps: how much larger or smaller than golden its output may be on the whole,
_CHANCE = 8.0  # unless the rows' gains differ so much that it is within so many standard errors
_SUBNORMAL = {"float16": 2.0**-12, "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-12}  # least rms


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
        eps = max(conditions.eps, conditions.noise)
        noise = _MULTIPLES[eps > _SHORT] * eps * math.sqrt(conditions.depth + 1)
        return max(noise, self._wide_limit(conditions))

    def _wide_limit(self, conditions: Conditions) -> float:
        """What one op rounds that sums in float32: more where its terms all but cancel."""
        return _MULTIPLES[False] * min(conditions.eps, _FLOAT32) * conditions.cancellation

    def check(self, metrics: Metrics, conditions: Conditions) -> Judgement:
        """PASS within the limit; integers, booleans and moved values must be equal."""
        if not conditions.eps:
            return _exact(metrics)
        if conditions.inputs_equal and conditions.arithmetic is Arithmetic.MOVES:
            return _verdict(
                not metrics.max_abs_diff, "this op only moves its inputs, which are equal"
            )
        if conditions.inputs_equal and conditions.arithmetic is Arithmetic.ROUNDS:
            alone = self._alone(metrics, conditions)
            if alone is not None:
                return alone
        limit = self.limit(conditions)
        reason = f"rel_l2 {metrics.rel_l2:.3g} is above {limit:.3g}"
        passes = metrics.rel_l2 <= limit
        return Judgement(Verdict.PASS if passes else Verdict.FAIL, "" if passes else reason, limit)

    def _alone(self, metrics: Metrics, conditions: Conditions) -> Judgement | None:
        """The judgement on one op with equal inputs, where its output is short and not tiny.

        Such an op computes in a wider dtype and rounds each element once: not by much, in no row
        by much, and not all to one side.
        """
        eps = conditions.eps
        if eps < _SHORT:
            limit = self._wide_limit(conditions)
            reason = f"inputs are equal, but rel_l2 {metrics.rel_l2:.3g} is above {limit:.3g}"
            passes = metrics.rel_l2 <= limit
            return Judgement(
                Verdict.PASS if passes else Verdict.FAIL, "" if passes else reason, limit
            )
        rms = metrics.golden.norm / math.sqrt(max(1, metrics.num_finite))
        if rms < _SUBNORMAL.get(conditions.coarser.name, 0.0):
            return None
        for name, found, limit in (
            ("rel_l2", metrics.rel_l2, _WHOLE * eps),
            ("max_row_err", metrics.max_row_err, _WHOLE * eps),
            ("gain", abs(metrics.gain), _GAIN * eps),
        ):
            doubt = 1 + _DOUBT * metrics.confidence  # of an estimate; a Summary knows no rows
            if found > limit * doubt and (name != "gain" or abs(metrics.gain_score) > _CHANCE):
                reason = f"inputs are equal, but {name} {found:.3g} is above {limit:.3g}"
                return Judgement(Verdict.FAIL, reason, _WHOLE * eps)
        return Judgement(Verdict.PASS, limit=_WHOLE * eps)


@dataclass(frozen=True, slots=True)
class ReferenceChecker:
    """The default where there is a reference: what is nearer to it than golden is no failure.

    What is farther from it fails where `Fp64Checker` or `RoundingChecker` says so.
    """

    fp64: Fp64Checker = Fp64Checker()
    rounding: RoundingChecker = RoundingChecker()
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
