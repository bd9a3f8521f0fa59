"""The work on one pair, as small as a worker needs: two archives' paths and their Records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from dumpcmp.comparing.side import archive_at
from dumpcmp.comparing.summaries import is_summarised, whole_summary
from dumpcmp.errors import DumpcmpError
from dumpcmp.judge import ReferenceErrors
from dumpcmp.measure.estimates import estimate
from dumpcmp.measure.metrics import measure
from dumpcmp.measure.summary import Summary, summarise
from dumpcmp.outcome import Closeness, Judgement, Metrics, Verdict
from dumpcmp.record import Kept, Record
from dumpcmp.tensors import Value


@dataclass(frozen=True, slots=True)
class Held:
    """A value as an archive holds it: one Record for every rank that has a share of it."""

    path: Path
    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        """The Record of the lowest rank."""
        return self.records[0]

    @property
    def nbytes(self) -> int:
        """Bytes that lie in the archive."""
        return sum(record.location.nbytes for record in self.records if record.location)


@dataclass(frozen=True, slots=True)
class Task:
    """A pair to measure, and the reference that both may be held against."""

    golden: Held
    target: Held
    closeness: Closeness
    reference: Held | None = None

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        return self.golden.nbytes + self.target.nbytes


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found: Metrics, or a Judgement where there was nothing to measure."""

    metrics: Metrics | None = None
    judgement: Judgement | None = None
    reference: ReferenceErrors | None = None


def measure_task(task: Task) -> Measured:
    """Measure one pair. Whatever is wrong with it becomes a Judgement: the others go on."""
    try:
        unreadable = _unreadable(task.golden, "golden") or _unreadable(task.target, "the target")
        if unreadable:
            return Measured(judgement=Judgement(Verdict.ERROR, unreadable))
        if is_summarised(task.golden.records) or is_summarised(task.target.records):
            return _estimated(task)
        return _measured(task)
    except DumpcmpError as error:
        return Measured(judgement=Judgement(Verdict.ERROR, error.message))


def _unreadable(held: Held, side: str) -> str:
    problems = [record.problem for record in held.records if record.kept is Kept.NOTHING]
    return f"{side} is not stored: {problems[0] or 'no reason is known'}" if problems else ""


def _measured(task: Task) -> Measured:
    golden = whole_value(task.golden)
    target = golden if _same_bytes(task.golden, task.target) else whole_value(task.target)
    if golden.shape != target.shape:
        reason = f"golden has shape {list(golden.shape)}, the target {list(target.shape)}"
        return Measured(judgement=Judgement(Verdict.SHAPE, reason))
    metrics = measure(golden, target, task.closeness)
    return Measured(metrics, reference=_reference_errors(task, golden, target))


def _same_bytes(golden: Held, target: Held) -> bool:
    """Whether the digests say that nothing differs, so that one side need not be read."""
    if len(golden.records) != 1 or len(target.records) != 1:
        return False
    one, other = golden.first, target.first
    return one.digest == other.digest != "" and (one.dtype, one.shape) == (other.dtype, other.shape)


def whole_value(held: Held) -> Value:
    """The elements of a value, whatever ranks hold them."""
    archive = archive_at(held.path)
    if len({record.digest for record in held.records}) > 1:
        raise DumpcmpError(f"{held.first.key} lies in shards on {len(held.records)} ranks")
    return archive.load(held.first)


def _reference_errors(task: Task, golden: Value, target: Value) -> ReferenceErrors | None:
    if task.reference is None or _unreadable(task.reference, "the reference"):
        return None
    reference = whole_value(task.reference)
    if reference.shape != golden.shape or not reference.numel:
        return None
    ours = measure(reference, golden)
    theirs = ours if target is golden else measure(reference, target)
    if not (ours.nonfinite_agree and theirs.nonfinite_agree):
        return None
    rms = ours.golden.norm / math.sqrt(max(1, ours.num_finite))
    return ReferenceErrors(ours.rmse, theirs.rmse, rms)


def _estimated(task: Task) -> Measured:
    ours, theirs = _summary(task.golden), _summary(task.target)
    known = ours or theirs
    assert known is not None
    ours = ours or summarise(whole_value(task.golden), known.recipe)
    theirs = theirs or summarise(whole_value(task.target), known.recipe)
    if ours.shape != theirs.shape:
        reason = f"golden has shape {list(ours.shape)}, the target {list(theirs.shape)}"
        return Measured(judgement=Judgement(Verdict.SHAPE, reason))
    return Measured(estimate(ours, theirs), reference=_estimated_errors(task, ours, theirs))


def _summary(held: Held) -> Summary | None:
    """The Summary that stands for a value; None where all its elements are there."""
    if not is_summarised(held.records):
        return None
    return whole_summary(archive_at(held.path), held.records)


def _estimated_errors(task: Task, golden: Summary, target: Summary) -> ReferenceErrors | None:
    if task.reference is None or _unreadable(task.reference, "the reference"):
        return None
    held = _summary(task.reference)
    reference = held or summarise(whole_value(task.reference), golden.recipe)
    if reference.whole != golden.whole or not reference.num_finite:
        return None
    ours, theirs = estimate(reference, golden), estimate(reference, target)
    if not (ours.nonfinite_agree and theirs.nonfinite_agree):
        return None
    rms = reference.norm / math.sqrt(reference.num_finite)
    return ReferenceErrors(ours.rmse, theirs.rmse, rms)
