"""The work on one pair, as small as a worker needs: two archives' paths and their Records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from dumpcmp.align.mesh.assemble import AssemblyError, RunFacts
from dumpcmp.comparing.partitioned import (
    Laid,
    check_delivery,
    is_partitioned,
    lay,
    noticed,
    shares_of,
    unread,
)
from dumpcmp.comparing.side import archive_at
from dumpcmp.comparing.summaries import (
    Summed,
    is_summarised,
    is_unstated,
    said_of_rows,
    unstated,
    whole_elements,
    whole_summary,
)
from dumpcmp.judge import ReferenceErrors
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.layouts import Layout
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.row import Closeness, Judgement, Metrics, Verdict
from dumpcmp.nouns.value import Value
from dumpcmp.summary.estimates import estimate
from dumpcmp.summary.summary import Recipe, Summary, summarise


@dataclass(frozen=True, slots=True)
class Held:
    """A value as an archive holds it: one Record for every rank that has a share of it."""

    path: Path
    records: tuple[Record, ...]
    facts: RunFacts = field(default_factory=RunFacts)

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
    limit: float = 0.0  # rel_l2 up to which a layout that nobody stated fits, and replicas agree
    assumed: Layout | None = None  # of a like value, where no layout fits

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
    laid: Laid | None = None  # of a partitioned pair: how it became whole, and who differs
    unsolved: bool = False  # no layout gives the other side's value


def measure_delivery(value: tuple[Path, tuple[Key, ...]]) -> Measured:
    """Measure what a collective of the archive gave against what it should have given.

    The keys are those of one value: one for each microbatch.
    """
    try:
        metrics, judgement = check_delivery(*value)
        return Measured(metrics, judgement)
    except DumpcmpError as error:
        return Measured(judgement=Judgement(Verdict.INCONCLUSIVE, error.message))


def measure_task(task: Task) -> Measured:
    """Measure one pair. Whatever is wrong with it becomes a Judgement: the others go on."""
    try:
        unreadable = _unreadable(task.golden, "golden") or _unreadable(task.target, "the target")
        if unreadable:
            return Measured(judgement=Judgement(Verdict.ERROR, unreadable))
        if is_summarised(task.golden.records) or is_summarised(task.target.records):
            return _estimated(task)
        return _measured(task)
    except AssemblyError as error:
        judgement = Judgement(Verdict.INCONCLUSIVE, error.message)
        return Measured(judgement=judgement, unsolved=True)
    except DumpcmpError as error:
        return Measured(judgement=Judgement(Verdict.ERROR, error.message))


def _unreadable(held: Held, side: str) -> str:
    problems = [record.problem for record in held.records if record.kept is Kept.NOTHING]
    return f"{side} is not stored: {problems[0] or 'no reason is known'}" if problems else ""


def _measured(task: Task) -> Measured:
    if is_partitioned(task.golden) or is_partitioned(task.target):
        sides = lay(task.golden, task.target, task.limit, task.assumed)
        measured = _measured_pair(task, sides[0].value, sides[1].value)
        if measured.metrics is None:
            return measured
        return replace(measured, laid=noticed(sides, measured.metrics, task.limit))
    golden = whole_value(task.golden)
    target = golden if _same_bytes(task.golden, task.target) else whole_value(task.target)
    return _measured_pair(task, golden, target)


def _measured_pair(task: Task, golden: Value, target: Value) -> Measured:
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
    return ReferenceErrors.of(ours, theirs)


def _estimated(task: Task) -> Measured:
    ours, theirs = _summed(task.golden), _summed(task.target)
    known = ours or theirs
    assert known is not None
    ours = ours or _summarised(task.golden, known.summary.recipe)
    theirs = theirs or _summarised(task.target, known.summary.recipe)
    golden, target = ours.summary, theirs.summary
    if golden.shape != target.shape:
        for held in (shares_of(task.golden), shares_of(task.target)):
            if is_unstated(held):
                raise unstated(held)
        reason = f"golden has shape {list(golden.shape)}, the target {list(target.shape)}"
        return Measured(judgement=Judgement(Verdict.SHAPE, reason))
    apart = [d for d in (*ours.disagreements, *theirs.disagreements) if d.rel_l2 > task.limit]
    return Measured(
        estimate(golden, target),
        reference=_estimated_errors(task, golden, target),
        laid=unread(str(apart[0]) if apart else "", said_of_rows(golden, target)),
    )


def _summed(held: Held) -> Summed | None:
    """The Summary that stands for a value; None where all its elements are there."""
    if not is_summarised(held.records):
        return None
    return whole_summary(archive_at(held.path), shares_of(held))


def _summarised(held: Held, recipe: Recipe) -> Summed:
    return Summed(summarise(whole_elements(shares_of(held)), recipe))


def _estimated_errors(task: Task, golden: Summary, target: Summary) -> ReferenceErrors | None:
    if task.reference is None or _unreadable(task.reference, "the reference"):
        return None
    found = _summed(task.reference) or _summarised(task.reference, golden.recipe)
    reference = found.summary
    if reference.whole != golden.whole or not reference.num_finite:
        return None
    return ReferenceErrors.of(estimate(reference, golden), estimate(reference, target))
