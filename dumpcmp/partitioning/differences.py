"""Compares two runs of an op slot by slot: outputs, gradients, and what was written in place."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from dumpcmp.judge import Conditions, Fp64Checker, ReferenceErrors, RoundingChecker, judge
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.dtypes import Dtype, Kind
from dumpcmp.nouns.row import Judgement, Metrics, Verdict
from dumpcmp.nouns.value import Value, value_of
from dumpcmp.partitioning.observing import Joined

# Errors that are always admissible, in multiples of eps, by bytes of the dtype: a sum in parts is
# rounded once more than a sum alone, which may even be exact.
_FLOORS = {1: 1.0, 2: 1.0, 4: 16.0, 8: 16.0, 16: 16.0}
_BAD = (Verdict.ERROR, Verdict.FAIL, Verdict.SHAPE, Verdict.NONFINITE, Verdict.UNPAIRED)


@dataclass(frozen=True, slots=True)
class Compared:
    """One slot of two runs, and the errors of both against float64."""

    slot: str
    judgement: Judgement
    max_abs_diff: float = math.nan
    max_rel_err: float = math.nan
    scale: float = math.nan  # rms of the float64 value
    single_error: float = math.nan
    partitioned_error: float = math.nan

    @property
    def verdict(self) -> Verdict:
        """The verdict; whatever makes a partition wrong is a FAIL."""
        found = self.judgement.verdict
        return Verdict.FAIL if found in _BAD or found is Verdict.DTYPE else found

    @property
    def rank(self) -> tuple[int, float]:
        """How bad it is: verdicts first, then the error."""
        order = (Verdict.EMPTY, Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL)
        error = self.max_rel_err
        return order.index(self.verdict), -1.0 if math.isnan(error) else error


def worst(compared: Sequence[Compared]) -> Compared:
    """The slot that decides; without any slot nothing was shown."""
    if not compared:
        return Compared("", Judgement(Verdict.INCONCLUSIVE, "the op gives no tensor to compare"))
    return max(compared, key=lambda found: found.rank)


def compare_slots(single: Joined, partitioned: Joined, reference: Joined | None) -> list[Compared]:
    """Every slot of either run, and every replica of a slot, held against the single run."""
    found = []
    for slot in {**single.values, **partitioned.values}:
        if slot not in single.values or slot not in partitioned.values:
            side = "single" if slot in single.values else "partitioned"
            judgement = Judgement(Verdict.UNPAIRED, f"only the {side} run has {slot}")
            found.append(Compared(slot, judgement))
            continue
        golden, finer = single.values[slot], _of(reference, slot)
        found.append(_compare(slot, golden, partitioned.values[slot], finer))
        for part, replica in enumerate(partitioned.replicas.get(slot, ())):
            if part:
                found.append(_compare(f"{slot} of part {part}", golden, replica, finer))
    return found


def _of(reference: Joined | None, slot: str) -> torch.Tensor | None:
    return None if reference is None else reference.values.get(slot)


def _compare(
    slot: str, golden: torch.Tensor, target: torch.Tensor, reference: torch.Tensor | None
) -> Compared:
    if golden.shape != target.shape:
        reason = f"{slot} has shape {list(target.shape)} in parts, {list(golden.shape)} alone"
        return Compared(slot, Judgement(Verdict.SHAPE, reason))
    one, two = value_of(golden), value_of(target)
    metrics = measure(one, two)
    conditions = Conditions(one.dtype, two.dtype, shape=one.shape)
    if metrics.equal or reference is None or one.dtype.kind not in (Kind.FLOAT, Kind.COMPLEX):
        judgement = judge(metrics, conditions, RoundingChecker())
        return Compared(slot, judgement, metrics.max_abs_diff, metrics.max_rel_err)
    return _with_reference(slot, metrics, conditions, (one, two, value_of(reference)))


def _with_reference(
    slot: str, metrics: Metrics, conditions: Conditions, values: tuple[Value, Value, Value]
) -> Compared:
    single, partitioned, reference = values
    ours, theirs = measure(reference, single), measure(reference, partitioned)
    scale = ours.golden.norm / math.sqrt(max(metrics.count, 1))
    dtype = conditions.coarser
    known = replace(conditions, reference=ReferenceErrors(ours.rmse, theirs.rmse, scale))
    judgement = judge(metrics, known, Fp64Checker(floor=_FLOORS[dtype.nbytes] * dtype.eps))
    if judgement.verdict is Verdict.FAIL:
        judgement = Judgement(Verdict.FAIL, _explained(metrics, ours, theirs))
    return Compared(
        slot,
        judgement,
        metrics.max_abs_diff,
        metrics.max_rel_err,
        scale,
        ours.rmse,
        theirs.rmse,
    )


def _explained(metrics: Metrics, single: Metrics, partitioned: Metrics) -> str:
    return (
        f"{partitioned.rmse:.3g} off the float64 run, where the single run is {single.rmse:.3g} "
        f"off; max_abs_diff {metrics.max_abs_diff:.3g} at {list(metrics.worst)}"
    )


def _credible(dtype: Dtype) -> float:
    return math.sqrt(dtype.eps)  # half of its digits, as Fp64Checker has it


def compare_with_reference(single: Joined, reference: Joined) -> list[Compared]:
    """The op in its own precision against its float64 run, which must be near to be believed."""
    return list(_believed(single, reference))


def _believed(single: Joined, reference: Joined) -> Iterator[Compared]:
    for slot, value in single.values.items():
        finer = reference.values.get(slot)
        if finer is None or finer.shape != value.shape:
            reason = f"the float64 run gives no {slot} of shape {list(value.shape)}"
            yield Compared(slot, Judgement(Verdict.INCONCLUSIVE, reason))
            continue
        one = value_of(value)
        metrics = measure(value_of(finer), one)
        yield Compared(
            slot,
            _belief(metrics, one.dtype),
            metrics.max_abs_diff,
            metrics.max_rel_err,
            metrics.golden.norm / math.sqrt(max(metrics.count, 1)),
            metrics.rmse,
        )


def _belief(metrics: Metrics, dtype: Dtype) -> Judgement:
    if not metrics.count:
        return Judgement(Verdict.EMPTY, "no elements")
    near = metrics.max_abs_diff == 0 or metrics.rel_l2 <= _credible(dtype)
    if (near and metrics.nonfinite_agree) or not metrics.num_finite:
        return Judgement(Verdict.PASS)
    reason = f"rel_l2 {metrics.rel_l2:.3g} off its own float64 run: no credible reference"
    return Judgement(Verdict.INCONCLUSIVE, reason)


def first_random(once: Joined, again: Joined) -> str:
    """The first slot that two runs with different seeds do not share, or nothing."""
    for slot, value in again.values.items():
        one = value_of(once.values[slot])
        metrics = measure(one, value_of(value))
        near = metrics.equal or metrics.rel_l2 <= _credible(one.dtype)
        if metrics.count and not (near and metrics.nonfinite_agree):
            return slot
    return ""
