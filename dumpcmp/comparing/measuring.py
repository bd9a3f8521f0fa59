"""The measuring step: both sides of a pair made whole and measured, or the trouble with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path

from dumpcmp.align.mesh.added_up import added_up
from dumpcmp.align.mesh.assemble import Assembled, added, times
from dumpcmp.align.mesh.held import (
    AssemblyError,
    Held,
    LackingShardError,
    LostShardError,
    TermsError,
)
from dumpcmp.align.mesh.unshard import distance
from dumpcmp.comparing.batches import run_batched
from dumpcmp.comparing.both_sides import (
    assembled_sides,
    golden_part,
    same_bytes,
    target_part,
    whole_value,
)
from dumpcmp.comparing.collected import handed_over, traffic_at
from dumpcmp.comparing.estimating import estimated, misshapen
from dumpcmp.comparing.how_laid import as_share, how_laid, with_holders
from dumpcmp.comparing.kept_rows import measure_rows
from dumpcmp.comparing.laying import LIKENESSES, Handover, Job, Task, look_again
from dumpcmp.comparing.own_metrics import measured_by
from dumpcmp.comparing.side import Shares, archive_at
from dumpcmp.judge.conditions import INEXACT
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.layouts import parse_layout
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.row import (
    LaidOut,
    Measured,
    Metrics,
    OpenSum,
    Pair,
    ReferenceErrors,
    Trouble,
)
from dumpcmp.nouns.spoken import ranks_named
from dumpcmp.nouns.value import Value

_TOLD = 500  # times that somebody is told how far it is
Tell = Callable[[int, int], None]  # is told how many bytes are measured, and how many there are


def measure_all(
    work: Mapping[Pair, Job], executor: Executor, tell: Tell | None = None
) -> tuple[dict[Pair, Job], dict[Pair, Measured]]:
    """Do all `work`; what no layout fits, once more with the layout of its likes.

    The work is given out as it was done in the end.
    """
    done, measured = dict(work), dict(_measure_each(work, executor, tell))
    for likeness in (*LIKENESSES, *LIKENESSES):  # what is found by one helps the others on
        again = look_again(done, measured, likeness)
        done |= again
        measured |= dict(_measure_each(again, executor))
    return {pair: _as_found(job, measured[pair]) for pair, job in done.items()}, measured


def _as_found(job: Job, measured: Measured) -> Job:
    """`job` with the layout that was found, so that nobody need look for it again."""
    laid = measured.laid
    if not isinstance(job, Task) or laid is None or not laid.layout:
        return job
    return replace(job, known=parse_layout(laid.layout))


def _measure_each(
    work: Mapping[Pair, Job], executor: Executor, tell: Tell | None = None
) -> Iterator[tuple[Pair, Measured]]:
    sizes = [task.nbytes for task in work.values()]
    total, done, told = sum(sizes), 0, 0
    results = run_batched(measure_tasks, list(work.values()), executor, expect_reads)
    for pair, nbytes, result in zip(work, sizes, results, strict=True):
        done += nbytes
        if tell and done > told and ((done - told) * _TOLD >= total or done == total):
            tell(done, total)
            told = done
        yield pair, result


def expect_reads(jobs: Sequence[Job]) -> None:
    """Tell the archives what these jobs will read."""
    wanted: dict[Path, list[Record]] = {}
    for job in jobs:
        for shares in _read_by(job):
            wanted.setdefault(shares.path, []).extend(shares.records)
    for path, records in wanted.items():
        archive_at(path).expect(records)


def _read_by(job: Job) -> tuple[Shares, ...]:
    """What a job reads, as far as that is known before."""
    if isinstance(job, Handover):
        return ()
    alone = not job.is_partitioned and job.turn is None and same_bytes(job.golden, job.target)
    sides = (job.golden,) if alone else (job.golden, job.target)
    return sides if job.reference is None else (*sides, job.reference)


def measure_tasks(tasks: Sequence[Job]) -> Iterator[Measured]:
    """Measure one pair after the other."""
    return map(measure_task, tasks)


def measure_task(task: Job) -> Measured:
    """Measure one pair. Whatever is wrong with it is told: the others go on."""
    if isinstance(task, Handover):
        return handed_over(task)
    try:
        for side, shares in (("golden", task.golden), ("the target", task.target)):
            if shares.problem:
                said = f"{side} is not stored: {shares.problem}"
                return Measured(trouble=Trouble.UNREADABLE, said=said)
        if task.is_sampled:
            return measure_rows(task, _measure)
        if task.golden.is_summarised or task.target.is_summarised:
            return estimated(task)
        return _measured(task)
    except LostShardError as error:
        return Measured(trouble=Trouble.LOST, said=error.message)
    except LackingShardError as error:
        if task.is_beside and len(task.target.records) == 1:  # one rank shows it once more
            rank = task.target.first.rank
            laid = LaidOut(holders=f"{ranks_named([rank])} alone has it")
            return replace(measure_task(task.of_rank(rank)), laid=laid)
        return Measured(trouble=Trouble.LACKING, said=error.message)
    except TermsError as error:
        return _of_terms(task, error.message)
    except AssemblyError as error:
        return Measured(trouble=Trouble.UNSOLVED, said=error.message)
    except DumpcmpError as error:
        return Measured(trouble=Trouble.UNREADABLE, said=error.message)


def _of_terms(task: Task, said: str) -> Measured:
    """A gradient that lies in terms: as a collective adds them up, if one that is recorded does."""
    unsolved, found = partial(Measured, trouble=Trouble.UNSOLVED), OpenSum()
    if len(task.golden.records) > 1 or task.golden_part or task.target_part:
        return unsolved(said=said, terms=found)
    golden, slot = golden_part(task), task.golden.first.key.slot
    for made in added_up(traffic_at(task.target.path), task.target.records):
        held = _holding(task.target.held(), made.values)
        if whole := added(held, golden, slot, task.limit):
            note = f"added up by {made.by}, {whole.note}"
            return replace(_measured_pair(task, golden, whole.value), laid=LaidOut(note))
        if golden.dtype.kind in INEXACT and added(held, times(golden, made.num), slot, task.limit):
            found = OpenSum(made.by, made.num)
    if not found.by:
        return unsolved(said=f"{said}; nothing that was recorded adds them up", terms=found)
    made_of_it = f"{found.by} adds them up to {found.times:.6g} times golden's value"
    return unsolved(
        said=f"{said}; {made_of_it}: a division after that is not on record", terms=found
    )


def _holding(held: Held, values: Mapping[int, Value]) -> Held:
    """`held` with other values on its ranks."""
    records = tuple(replace(record, digest="") for record in held.records)
    return replace(held, records=records, load=lambda record: values[record.rank])


def _measured(task: Task) -> Measured:
    if task.is_partitioned:
        sides = assembled_sides(task)
        measured = _measured_pair(task, sides[0].value, sides[1].value)
        if measured.metrics is None:
            return as_share(task, measured, *(side.value.shape for side in sides))
        if task.is_beside and (said := _summed_means(task, sides, measured.metrics)):
            return Measured(trouble=Trouble.UNSOLVED, said=said)
        laid = how_laid(*sides, measured.metrics, task.limit)
        return replace(measured, laid=with_holders(laid, task.target, measured.metrics))
    same = task.turn is None and same_bytes(task.golden, task.target)
    golden = golden_part(task)
    return _measured_pair(task, golden, golden if same else target_part(task))


def _summed_means(task: Task, sides: Sequence[Assembled], metrics: Metrics) -> str:
    """That what an op takes is as many times golden's as ranks have added up their means.

    Nobody says that they are one value: what is made of it shows whether a division comes next.
    """
    if task.target.first.key.slot.kind != "input":
        return ""
    golden, target = (side.value for side in sides)
    num = round(1 + metrics.gain) if math.isfinite(metrics.gain) else 0
    may_be = golden.dtype.kind in INEXACT and 1 < num <= task.target.facts.num_ranks
    if not may_be or distance(golden, target, num).rel_l2 > task.limit:
        return ""
    return f"it is {num} times golden's, as a sum of {num} means is"


def _measured_pair(task: Task, golden: Value, target: Value) -> Measured:
    if golden.shape != target.shape:
        found = misshapen(golden.shape, target.shape)
        unknown = task.is_beside and task.is_partitioned  # nobody says that they are one value
        return replace(found, trouble=Trouble.UNSOLVED) if unknown else found
    metrics = _measure(task, golden, target)
    own, problem = measured_by(task.own, golden, target)
    errors = _reference_errors(task, golden, target)
    return Measured(metrics, reference=errors, own=own, own_problem=problem)


def _measure(task: Task, golden: Value, target: Value) -> Metrics:
    if task.on == "cpu":
        return measure(golden, target, task.closeness)
    from dumpcmp.measure.on_device import measure_on

    return measure_on(task.on, golden, target, task.closeness)


def _reference_errors(task: Task, golden: Value, target: Value) -> ReferenceErrors | None:
    if task.reference is None or task.reference.problem or task.reference.is_sampled:
        return None
    reference = whole_value(task.reference)
    if reference.shape != golden.shape or not reference.numel:
        return None
    ours = measure(reference, golden)
    return ReferenceErrors.of(ours, ours if target is golden else measure(reference, target))
