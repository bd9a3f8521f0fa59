"""Measures pairs of which some rows are kept: the rows that both sides have."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dumpcmp.comparing.laying import Task
from dumpcmp.comparing.own_metrics import measured_by
from dumpcmp.comparing.side import Shares, archive_at
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import LaidOut, Measured, Metrics, ReferenceErrors, Trouble
from dumpcmp.nouns.sampled import Sample, row_length
from dumpcmp.nouns.value import Integers, Value

Measure = Callable[[Task, Value, Value], Metrics]


@dataclass(frozen=True, slots=True, eq=False)
class KeptRows:
    """Rows of a value: where they lie among all of its rows, and their elements."""

    shape: tuple[int, ...]  # of the whole value
    places: Integers
    value: Value  # one row each

    def only(self, places: Integers) -> Value:
        """Those of the rows that lie at `places`."""
        if places.size == self.places.size:
            return self.value
        chosen = np.searchsorted(self.places, places)
        return Value(self.value.dtype, self.value.bits[chosen])


def kept_rows(shares: Shares) -> KeptRows:
    """The rows that are kept of a value that lies on one rank: some, or all."""
    record = shares.first
    value, row = archive_at(shares.path).load(record), row_length(record.shape)
    sample = _sample(record)
    if value.numel != sample.num_kept * row:
        raise DumpcmpError(
            f"{record.key} has {sample}, each of {row} elements, but {value.numel} elements",
            hint="dumpcmp audit says what is left of the part",
        )
    rows = Value(value.dtype, value.bits.reshape(sample.num_kept, row))
    return KeptRows(record.shape, sample.rows, rows)


def measure_rows(task: Task, measure: Measure) -> Measured:
    """Measure the rows that both sides have; that nobody knows the others is part of it."""
    if why := incomparable(task):
        return Measured(trouble=Trouble.UNKEPT, said=why)
    if not task.is_partitioned:
        return _rows_of_one(task, measure)
    ranks = [record.rank for record in task.golden.records]
    by_rank = {rank: _rows_of_one(task.of_rank(rank), measure) for rank in ranks}
    errors = {rank: m.metrics.rel_l2 for rank, m in by_rank.items() if m.metrics is not None}
    if len(errors) < len(ranks):
        return next(measured for measured in by_rank.values() if measured.metrics is None)
    worst = max(errors, key=lambda rank: _badness(by_rank[rank]))
    laid = LaidOut("each rank's rows against golden's of that rank", by_rank=tuple(errors.items()))
    return replace(by_rank[worst], laid=laid)


def _badness(measured: Measured) -> tuple[bool, float]:
    metrics = measured.metrics
    assert metrics is not None
    return not metrics.nonfinite_agree, 0.0 if np.isnan(metrics.rel_l2) else metrics.rel_l2


def incomparable(task: Task) -> str:
    """Why the rows of one side are not those of the other; empty where they are."""
    for shares in (task.golden, task.target):
        if any(record.stored is not None and record.sample is None for record in shares.records):
            return "one side keeps some of its rows, the other a Summary"
    if task.turn is not None or task.golden_part is not None or task.target_part is not None:
        return "only some of its rows are kept, and the other side has them in another form"
    if task.is_partitioned and not _lie_alike(task):
        return "only some of its rows are kept, and the sides lie over ranks in other ways"
    return ""


def _lie_alike(task: Task) -> bool:
    """Whether the same ranks hold shares of the same shape and layout on both sides."""
    ours, theirs = (
        [(record.rank, record.shape, record.layout) for record in shares.records]
        for shares in (task.golden, task.target)
    )
    return ours == theirs and task.golden.facts.num_ranks == task.target.facts.num_ranks


def _sample(record: Record) -> Sample:
    return record.sample or Sample.of(math.prod(record.shape), record.shape)


def _common(ours: Integers, theirs: Integers) -> Integers:
    return np.intersect1d(ours, theirs, assume_unique=True)


def rows_of_both(task: Task) -> tuple[Value, Value]:
    """The rows that both sides keep, of either."""
    golden, target = kept_rows(task.golden), kept_rows(task.target)
    places = _common(golden.places, target.places)
    return golden.only(places), target.only(places)


def _rows_of_one(task: Task, measure: Measure) -> Measured:
    golden, target = kept_rows(task.golden), kept_rows(task.target)
    if golden.shape != target.shape:
        said = f"golden has shape {list(golden.shape)}, the target {list(target.shape)}"
        return Measured(trouble=Trouble.SHAPE, said=said)
    places = _common(golden.places, target.places)
    if not places.size:
        return Measured(trouble=Trouble.UNKEPT, said="the sides keep none of the same rows")
    ours, theirs = golden.only(places), target.only(places)
    metrics = measure(task, ours, theirs)
    own, problem = measured_by(task.own, ours, theirs)
    found = metrics._replace(
        equal=False,  # nobody knows of the others
        worst=_place_of(metrics.worst, golden.shape, places),
        sample=replace(Sample.of(0, golden.shape), num_kept=int(places.size)),
    )
    errors = _reference_errors(task, golden.shape, places, ours, theirs, measure)
    return Measured(found, reference=errors, own=own, own_problem=problem)


def _place_of(worst: tuple[int, ...], shape: tuple[int, ...], places: Integers) -> tuple[int, ...]:
    """Where in the whole the element at `worst` of the rows lies."""
    if not worst:
        return ()
    row, column = worst
    at = int(places[row]) * row_length(shape) + column
    return tuple(int(index) for index in np.unravel_index(at, shape))


def _reference_errors(
    task: Task, shape: tuple[int, ...], places: Integers, ours: Value, theirs: Value,
    measure: Measure,
) -> ReferenceErrors | None:  # fmt: skip
    """How far both sides are from the reference, if it has all of these rows."""
    shares = task.reference
    if shares is None or shares.problem or (shares.is_summarised and not shares.is_sampled):
        return None
    reference = kept_rows(shares)
    if reference.shape != shape or np.setdiff1d(places, reference.places).size:
        return None
    rows = reference.only(places)
    return ReferenceErrors.of(measure(task, rows, ours), measure(task, rows, theirs))
