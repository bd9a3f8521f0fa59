"""The measuring step: both sides of a pair made whole and measured, or the trouble with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from dumpcmp.align.mesh.added_up import added_up
from dumpcmp.align.mesh.assemble import (
    Assembled,
    AssemblyError,
    Basis,
    Held,
    LackingShardError,
    LostShardError,
    TermsError,
    added,
    assemble,
    by_rank,
    explain,
    times,
)
from dumpcmp.align.mesh.deliveries import Traffic
from dumpcmp.align.mesh.regions import Shape
from dumpcmp.align.mesh.travelled import in_golden_order
from dumpcmp.align.pieces import cut_out, part_shape
from dumpcmp.align.turning import turned
from dumpcmp.comparing.batches import run_batched
from dumpcmp.comparing.expanding import unexpanded
from dumpcmp.comparing.kept_rows import measure_rows, rows_of_both
from dumpcmp.comparing.laying import LIKENESSES, Handover, Job, Task, look_again
from dumpcmp.comparing.own_metrics import measured_by
from dumpcmp.comparing.side import Shares, archive_at, asked_now
from dumpcmp.comparing.summaries import (
    Summed,
    is_unstated,
    said_of_rows,
    unstated,
    whole_elements,
    whole_summary,
)
from dumpcmp.judge.conditions import INEXACT
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.errors import DumpcmpError, LayoutError
from dumpcmp.nouns.key import ROOT
from dumpcmp.nouns.layouts import parse_layout
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.row import (
    Cut,
    LaidOut,
    Measured,
    Metrics,
    OpenSum,
    Own,
    Pair,
    ReferenceErrors,
    Trouble,
)
from dumpcmp.nouns.spoken import ranks_named
from dumpcmp.nouns.value import Value
from dumpcmp.summary.checksums import checksum
from dumpcmp.summary.estimates import estimate
from dumpcmp.summary.summary import Summary, summarise

_SMALL = 1 << 15  # bytes of both sides
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


def unsolved_in(measured: Mapping[Pair, Measured]) -> Callable[[Pair], bool]:
    """Whether no layout makes a pair's shards a whole value, where it is or first appears.

    Numbers that a rank made for itself, such as places in its own list of tokens, are no shards.
    """

    def is_unsolved(pair: Pair) -> bool:
        found = measured.get(pair) or measured.get(pair.repeats or pair)
        if found is None:
            return False
        is_own = found.laid is not None and found.laid.is_own and not pair.key.slot.is_weight
        is_open = found.trouble in (Trouble.UNSOLVED, Trouble.LACKING)
        return is_open or (is_own and pair.key.op != ROOT)

    return is_unsolved


def _measure_each(
    work: Mapping[Pair, Job], executor: Executor, tell: Tell | None = None
) -> Iterator[tuple[Pair, Measured]]:
    sizes = [task.nbytes for task in work.values()]
    total, done, told = sum(sizes), 0, 0
    results = run_batched(measure_task, list(work.values()), executor, expect_reads)
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
    alone = not job.is_partitioned and job.turn is None and _same_bytes(job.golden, job.target)
    sides = (job.golden,) if alone else (job.golden, job.target)
    return sides if job.reference is None else (*sides, job.reference)


def measure_task(task: Job) -> Measured:
    """Measure one pair. Whatever is wrong with it is told: the others go on."""
    if isinstance(task, Handover):
        return _handed_over(task)
    try:
        for side, shares in (("golden", task.golden), ("the target", task.target)):
            if shares.problem:
                said = f"{side} is not stored: {shares.problem}"
                return Measured(trouble=Trouble.UNREADABLE, said=said)
        if task.is_sampled:
            return measure_rows(task, _measure)
        if task.golden.is_summarised or task.target.is_summarised:
            return _estimated(task)
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
        return Measured(trouble=Trouble.UNSOLVED, said=error.message, by_rows=_row_by_row(task))
    except DumpcmpError as error:
        return Measured(trouble=Trouble.UNREADABLE, said=error.message)


def _row_by_row(task: Task) -> Metrics | None:
    """The rows that ranks hold against golden's, in whichever order and on whichever rank.

    That they are the same says nothing of where they should be.
    """
    if task.is_beside or len(task.golden.records) > 1:
        return None
    held = task.target.held()
    golden = _whole(task.golden)
    found = in_golden_order(golden, [held.load(record) for record in held.records])
    return measure(golden, found, task.closeness) if found else None


def _of_terms(task: Task, said: str) -> Measured:
    """A gradient that lies in terms: as a collective adds them up, if one that is recorded does."""
    unsolved, found = partial(Measured, trouble=Trouble.UNSOLVED), OpenSum()
    if len(task.golden.records) > 1 or task.golden_part or task.target_part:
        return unsolved(said=said, terms=found)
    golden, slot = _golden_part(task), task.golden.first.key.slot
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
        sides = _sides(task)
        measured = _measured_pair(task, sides[0].value, sides[1].value)
        if measured.metrics is None:
            return _as_share(task, measured, *(side.value.shape for side in sides))
        laid = _laid(*sides, measured.metrics, task.limit)
        return replace(measured, laid=_with_holders(laid, task.target, measured.metrics))
    same = task.turn is None and _same_bytes(task.golden, task.target)
    golden = _golden_part(task)
    return _measured_pair(task, golden, golden if same else _target_part(task))


def _as_share(task: Task, measured: Measured, golden: Shape, target: Shape) -> Measured:
    """What was measured, if that is no more than the share that some ranks have of a value."""
    fits = len(golden) == len(target) and all(n <= m for m, n in zip(golden, target, strict=True))
    if not (task.is_share and fits and measured.trouble is Trouble.SHAPE):
        return measured
    holders = ranks_named(sorted({record.rank for record in task.target.records}))
    said = f"it is a share, {list(target)} of {list(golden)}, that {holders} took by itself"
    return Measured(trouble=Trouble.UNSOLVED, said=said)


def _golden_part(task: Task) -> Value:
    return _part(_whole(task.golden), task.golden_part)


def _target_part(task: Task) -> Value:
    """What of the target golden has as a value, with its dims in golden's order."""
    value = _part(_whole(task.target), task.target_part)
    if task.turn is None:
        return unexpanded(value, task.golden.first)
    shape = task.golden.first.shape
    shape = part_shape(shape, task.golden_part) if task.golden_part else shape
    return Value(value.dtype, turned(value.bits, task.turn, shape))


def _sides(task: Task) -> tuple[Assembled, Assembled]:
    held = task.golden.held(), task.target.held()
    return assemble(*held, task.limit, task.assumed, task.known)


def _part(value: Value, part: Cut | None) -> Value:
    """What of `value` the other side has as a value of its own."""
    return value if part is None else Value(value.dtype, cut_out(value.bits, part))


def _measured_pair(task: Task, golden: Value, target: Value) -> Measured:
    if golden.shape != target.shape:
        found = _misshapen(golden.shape, target.shape)
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


def side_of(task: Task, is_target: bool) -> Value:
    """One side of a pair, whole, or the rows of it that both sides keep.

    What one op gave out others were given: small ones are kept at hand for a while.
    """
    is_small = 0 < task.nbytes <= _SMALL
    return _lately(task, is_target) if is_small else _side(task, is_target)


@lru_cache(maxsize=1024)
def _lately(task: Task, is_target: bool) -> Value:
    return _side(task, is_target)


def let_go() -> None:
    """Keep nothing at hand any more: the steps that it belongs to are done with."""
    _lately.cache_clear()


def _side(task: Task, is_target: bool) -> Value:
    if task.is_sampled:
        return rows_of_both(task)[is_target]
    if task.is_partitioned:
        return _sides(task)[is_target].value
    return _target_part(task) if is_target else _golden_part(task)


def sides_of(task: Task) -> tuple[Value, Value]:
    """Both sides of a pair as they are measured: whole, or the part that the other side has."""
    if task.is_partitioned:
        ours, theirs = _sides(task)
        return ours.value, theirs.value
    return _golden_part(task), _target_part(task)


def _misshapen(golden: tuple[int, ...], target: tuple[int, ...]) -> Measured:
    said = f"golden has shape {list(golden)}, the target {list(target)}"
    return Measured(trouble=Trouble.SHAPE, said=said)


def _laid(golden: Assembled, target: Assembled, metrics: Metrics, limit: float) -> LaidOut:
    """What to say of two sides now that they are measured: how they lay, and who differs."""
    apart = [d for side in (golden, target) for d in side.disagreements if d.rel_l2 > limit]
    remark = ""
    if apart or not (metrics.equal or metrics.rel_l2 <= limit):
        remark = explain(golden, target, metrics, limit)
    finding = remark or str(apart[0]) if apart else ""
    note = golden.note or target.note
    if golden.note and target.note:
        note = f"golden: {golden.note}; target: {target.note}"
    ranks = () if metrics.equal else by_rank(golden, target, limit)
    is_solved, is_number = target.basis is Basis.SOLVED, golden.value.dtype.kind in INEXACT
    is_own = target.basis in (Basis.SOME_FIT, Basis.ASSUMED) and not is_number
    is_by_rank = target.basis is Basis.BY_RANK
    is_joined = bool(golden.plan)
    return LaidOut(
        note,
        target.layout,
        is_solved,
        finding,
        remark,
        ranks,
        is_own=is_own,
        is_by_rank=is_by_rank,
        is_joined=is_joined,
        is_replicated=target.basis is Basis.REPLICAS and len(target.value.shape) > 0,
    )


def _with_holders(laid: LaidOut, target: Shares, metrics: Metrics) -> LaidOut:
    """`laid`, where the sides differ, with the ranks that hold the target's, if not all do."""
    ranks = {record.rank for record in target.records}
    if metrics.equal or len(ranks) == target.facts.num_ranks or laid.by_rank:
        return laid
    said = f"{ranks_named(ranks)} alone {'have' if len(ranks) > 1 else 'has'} it"
    return replace(laid, holders=said)


def _same_bytes(golden: Shares, target: Shares) -> bool:
    """Whether the digests say that nothing differs, so that one side need not be read."""
    one, other = golden.first, target.first
    return one.digest == other.digest != "" and (one.dtype, one.shape) == (other.dtype, other.shape)


def _whole(shares: Shares) -> Value:
    """The elements of a value that some rank holds whole."""
    if len({record.digest for record in shares.records}) > 1:
        raise DumpcmpError(f"{shares.first.key} lies in shards on {len(shares.records)} ranks")
    return archive_at(shares.path).load(shares.first)


def _reference_errors(task: Task, golden: Value, target: Value) -> ReferenceErrors | None:
    if task.reference is None or task.reference.problem or task.reference.is_sampled:
        return None
    reference = _whole(task.reference)
    if reference.shape != golden.shape or not reference.numel:
        return None
    ours = measure(reference, golden)
    return ReferenceErrors.of(ours, ours if target is golden else measure(reference, target))


# Summaries


def _estimated(task: Task) -> Measured:
    ours, theirs = _summed(task.golden), _summed(task.target)
    known = ours or theirs
    assert known is not None
    ours = ours or _summarised(task.golden, known.summary)
    theirs = theirs or _summarised(task.target, known.summary)
    golden, target = ours.summary, theirs.summary
    if golden.shape != target.shape:
        for held in (task.golden.held(), task.target.held()):
            if is_unstated(held):
                raise unstated(held)
        return _misshapen(golden.shape, target.shape)
    apart = [d for d in (*ours.disagreements, *theirs.disagreements) if d.rel_l2 > task.limit]
    finding = str(apart[0]) if apart else ""
    return Measured(
        estimate(golden, target),
        reference=_estimated_errors(task, golden, target),
        own=_reduced(golden, target),
        own_problem="--metric: only Summaries of it are kept" if task.own else "",
        laid=LaidOut(finding=finding, remark=said_of_rows(golden, target)),
    )


def _reduced(golden: Summary, target: Summary) -> Own:
    """The numbers that a user's own function gave of either side: golden.spread, my.spread."""
    sides = {"golden": golden, "my": target}
    return tuple(
        (f"{side}.{name}", number)
        for side, summary in sides.items()
        for name, number in summary.reduced.items()
    )


def _summed(shares: Shares) -> Summed | None:
    """The Summary that stands for a value; None where all its elements are there."""
    if not shares.is_summarised:
        return None
    return whole_summary(archive_at(shares.path), shares.held())


def _summarised(shares: Shares, other: Summary) -> Summed:
    """The Summary of a value whose elements are there, as the `other` side's was taken."""
    value = whole_elements(shares.held())
    found = summarise(value, other.recipe)
    return Summed(replace(found, checksum=checksum(value) if other.checksum else ""))


def _estimated_errors(task: Task, golden: Summary, target: Summary) -> ReferenceErrors | None:
    if task.reference is None or task.reference.problem or task.reference.is_sampled:
        return None
    found = _summed(task.reference) or _summarised(task.reference, golden)
    reference = found.summary
    if reference.whole != golden.whole or not reference.num_finite:
        return None
    return ReferenceErrors.of(estimate(reference, golden), estimate(reference, target))


# Collectives


def traffic_at(path: Path) -> Traffic:
    """The collectives of the archive at `path`."""
    return _traffic(path, asked_now())


@lru_cache(maxsize=4)
def _traffic(path: Path, _asked: str) -> Traffic:
    archive = archive_at(path)
    calls = archive.calls_by_rank(archive.ranks)

    def load(record: Record) -> Value:
        if record.kept is Kept.SUMMARY:
            raise LayoutError(
                "only summaries are kept of what the collective took and gave, so that it cannot "
                f"be checked: dump again with --keep-full '{record.key.op}'"
            )
        return archive.load(record)

    return Traffic(calls, archive.shards, load)


def _handed_over(task: Handover) -> Measured:
    """What the ranks got from a collective against what they should: the one that is farthest."""
    if task.keys[0].slot.is_gradient:
        said = "golden has no value that is its partner"
        return Measured(trouble=Trouble.UNCHECKED, said=said)
    try:
        traffic = traffic_at(task.path)
        got = [one for key in task.keys for one in traffic.deliveries(key)]
        laid = LaidOut(f"over {traffic.groups(task.keys[0].site)}")
        measured = [Measured(measure(o.expected, o.got), laid=laid, rank=o.rank) for o in got]
    except DumpcmpError as error:
        return Measured(trouble=Trouble.UNCHECKED, said=error.message)
    unknown = Measured(trouble=Trouble.UNCHECKED, said="what the collective gave was not recorded")
    return max(measured, key=_badness, default=unknown)


def _badness(found: Measured) -> float:
    metrics = found.metrics
    if metrics is None or metrics.equal or not metrics.count:
        return 0.0
    known = metrics.nonfinite_agree and not math.isnan(metrics.rel_l2)
    return metrics.rel_l2 if known else math.inf
