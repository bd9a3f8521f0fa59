"""Pairs of which a side is a Summary: their errors, as far as Summaries tell."""

from __future__ import annotations

from dataclasses import replace

from dumpcmp.comparing.laying import Task
from dumpcmp.comparing.side import Shares, archive_at
from dumpcmp.comparing.summaries import (
    Summed,
    is_unstated,
    said_of_rows,
    unstated,
    whole_elements,
    whole_summary,
)
from dumpcmp.nouns.row import LaidOut, Measured, Own, ReferenceErrors, Trouble
from dumpcmp.summary.checksums import checksum
from dumpcmp.summary.estimates import estimate
from dumpcmp.summary.summary import Summary, summarise


def estimated(task: Task) -> Measured:
    """Measure a pair of which a side is a Summary, as far as that goes."""
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
        return misshapen(golden.shape, target.shape)
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


def misshapen(golden: tuple[int, ...], target: tuple[int, ...]) -> Measured:
    """What is to say of a pair whose sides have two shapes."""
    said = f"golden has shape {list(golden)}, the target {list(target)}"
    return Measured(trouble=Trouble.SHAPE, said=said)
