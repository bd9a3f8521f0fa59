"""What to say of how the shards of a measured pair lay, and of who holds them."""

from __future__ import annotations

from dataclasses import replace

from dumpcmp.align.mesh.assemble import Assembled, Basis, by_rank, explain
from dumpcmp.align.mesh.culprits import about_whole
from dumpcmp.align.mesh.regions import Shape
from dumpcmp.comparing.laying import Task
from dumpcmp.comparing.side import Shares
from dumpcmp.judge.conditions import INEXACT
from dumpcmp.nouns.row import LaidOut, Measured, Metrics, Trouble
from dumpcmp.nouns.spoken import ranks_named


def how_laid(golden: Assembled, target: Assembled, metrics: Metrics, limit: float) -> LaidOut:
    """What to say of two sides now that they are measured: how they lay, and who differs."""
    apart = [d for side in (golden, target) for d in side.disagreements if d.rel_l2 > limit]
    remark = ""
    if apart or not (metrics.equal or metrics.rel_l2 <= limit):
        remark = explain(golden, target, metrics, limit)
    multiple = about_whole(golden.value, target.value, metrics.gain, limit) if golden.plan else ()
    finding = remark or str(apart[0]) if apart else next(iter(multiple), "")
    note = golden.note or target.note
    if golden.note and target.note:
        note = f"golden: {golden.note}; target: {target.note}"
    ranks = () if metrics.equal else by_rank(golden, target, limit)
    is_solved, is_number = target.basis is Basis.SOLVED, golden.value.dtype.kind in INEXACT
    is_own = target.basis in (Basis.SOME_FIT, Basis.ASSUMED) and not is_number
    is_by_rank = target.basis is Basis.BY_RANK
    return LaidOut(
        note,
        target.layout,
        is_solved,
        finding,
        remark,
        ranks,
        is_own=is_own,
        is_by_rank=is_by_rank,
        is_replicated=target.basis is Basis.REPLICAS and len(target.value.shape) > 0,
    )


def with_holders(laid: LaidOut, target: Shares, metrics: Metrics) -> LaidOut:
    """`laid`, where the sides differ, with the ranks that hold the target's, if not all do."""
    ranks = {record.rank for record in target.records}
    if metrics.equal or len(ranks) == target.facts.num_ranks or laid.by_rank:
        return laid
    said = f"{ranks_named(ranks)} alone {'have' if len(ranks) > 1 else 'has'} it"
    return replace(laid, holders=said)


def as_share(task: Task, measured: Measured, golden: Shape, target: Shape) -> Measured:
    """What was measured, if that is no more than the share that some ranks have of a value."""
    fits = len(golden) == len(target) and all(n <= m for m, n in zip(golden, target, strict=True))
    if not (task.is_share and fits and measured.trouble is Trouble.SHAPE):
        return measured
    holders = ranks_named(sorted({record.rank for record in task.target.records}))
    said = f"it is a share, {list(target)} of {list(golden)}, that {holders} took by itself"
    return Measured(trouble=Trouble.UNSOLVED, said=said)
