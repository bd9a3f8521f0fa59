"""Compares two runs of an op slot by slot: outputs, gradients, and what was written in place."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch import Tensor

from dumpcmp.judge import Conditions, Fp64Checker, ReferenceErrors, RoundingChecker, judge
from dumpcmp.judge.tolerances import credible, one_op
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.row import Judgement, Metrics, Verdict
from dumpcmp.nouns.value import Kind, value_of
from dumpcmp.partitioning.findings import Finding
from dumpcmp.partitioning.parts import Joined

_ORDER = (Verdict.EMPTY, Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL)


def worst(row: Finding, found: Iterable[Finding]) -> Finding:
    """The slot that decides: verdicts first, then the error. Without any slot nothing was shown."""
    nothing = replace(row, verdict=Verdict.INCONCLUSIVE, reason="the op gives no tensor to compare")
    return max(found, key=_badness, default=nothing)


def _badness(row: Finding) -> tuple[int, float]:
    error = row.max_rel_err
    return _ORDER.index(row.verdict), -1.0 if math.isnan(error) else error


def _found(
    row: Finding, slot: str, judgement: Judgement, metrics: Metrics | None = None, *errors: float
) -> Finding:
    """`row` for one slot; whatever makes a partition wrong is a FAIL."""
    verdict = judgement.verdict
    if verdict.fails or verdict is Verdict.DTYPE:
        verdict = Verdict.FAIL
    row = replace(row, verdict=verdict, worst_slot=slot, reason=judgement.reason)
    if metrics is not None:
        row = replace(row, max_abs_diff=metrics.max_abs_diff, max_rel_err=metrics.max_rel_err)
    return replace(row, **dict(zip(_ERRORS, errors, strict=False)))  # type: ignore[arg-type]


_ERRORS = ("rmse_reference", "rmse_single", "rmse_partitioned")


def compare_slots(
    row: Finding, single: Joined, partitioned: Joined, reference: Joined | None
) -> Iterator[Finding]:
    """Every slot of either run, and every replica of a slot, held against the single run."""
    for slot in {**single.values, **partitioned.values}:
        if slot not in single.values or slot not in partitioned.values:
            side = "single" if slot in single.values else "partitioned"
            yield _found(row, slot, Judgement(Verdict.UNPAIRED, f"only the {side} run has {slot}"))
            continue
        golden = single.values[slot]
        finer = reference.values.get(slot) if reference else None
        yield _compare(row, slot, golden, partitioned.values[slot], finer)
        for part, replica in enumerate(partitioned.replicas.get(slot, ())):
            if part:
                yield _compare(row, f"{slot} of part {part}", golden, replica, finer)


def _compare(
    row: Finding, slot: str, golden: Tensor, target: Tensor, reference: Tensor | None
) -> Finding:
    if golden.shape != target.shape:
        reason = f"{slot} has shape {list(target.shape)} in parts, {list(golden.shape)} alone"
        return _found(row, slot, Judgement(Verdict.SHAPE, reason))
    one, two = value_of(golden), value_of(target)
    metrics = measure(one, two)
    conditions = Conditions(one.dtype, two.dtype, shape=one.shape)
    if metrics.equal or reference is None or one.dtype.kind not in (Kind.FLOAT, Kind.COMPLEX):
        return _found(row, slot, judge(metrics, conditions, RoundingChecker()), metrics)
    finer = value_of(reference)
    ours, theirs = measure(finer, one), measure(finer, two)
    scale = _rms(ours)
    known = replace(conditions, reference=ReferenceErrors(ours.rmse, theirs.rmse, scale))
    judgement = judge(metrics, known, Fp64Checker(floor=one_op(conditions.coarser.eps)))
    if judgement.verdict is Verdict.FAIL:
        judgement = Judgement(
            Verdict.FAIL,
            f"{theirs.rmse:.3g} off the float64 run, where the single run is {ours.rmse:.3g} off; "
            f"max_abs_diff {metrics.max_abs_diff:.3g} at {list(metrics.worst)}",
        )
    return _found(row, slot, judgement, metrics, scale, ours.rmse, theirs.rmse)


def _rms(metrics: Metrics) -> float:
    """The root mean square of golden."""
    return metrics.golden.norm / math.sqrt(max(metrics.count, 1))


def compare_with_reference(row: Finding, single: Joined, reference: Joined) -> Iterator[Finding]:
    """The op in its own precision against its float64 run, which must be near to be believed."""
    for slot, value in single.values.items():
        finer = reference.values.get(slot)
        if finer is None or finer.shape != value.shape:
            reason = f"the float64 run gives no {slot} of shape {list(value.shape)}"
            yield _found(row, slot, Judgement(Verdict.INCONCLUSIVE, reason))
            continue
        one = value_of(value)
        metrics = measure(value_of(finer), one)
        judgement = _belief(metrics, one.dtype.eps)
        yield _found(row, slot, judgement, metrics, _rms(metrics), metrics.rmse)


def _belief(metrics: Metrics, eps: float) -> Judgement:
    if not metrics.count:
        return Judgement(Verdict.EMPTY, "no elements")
    near = metrics.max_abs_diff == 0 or metrics.rel_l2 <= credible(eps)
    if (near and metrics.nonfinite_agree) or not metrics.num_finite:
        return Judgement(Verdict.PASS)
    reason = f"rel_l2 {metrics.rel_l2:.3g} off its own float64 run: no credible reference"
    return Judgement(Verdict.INCONCLUSIVE, reason)


def first_random(once: Joined, again: Joined) -> str:
    """The first slot that two runs with different seeds do not share, or nothing."""
    for slot, value in again.values.items():
        one = value_of(once.values[slot])
        metrics = measure(one, value_of(value))
        near = metrics.equal or metrics.rel_l2 <= credible(one.dtype.eps)
        if metrics.count and not (near and metrics.nonfinite_agree):
            return slot
    return ""
