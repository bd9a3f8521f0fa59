"""Partitioned runs in a comparison: whole values, collectives, and what like values tell."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from dumpcmp.align.match import Listing, Match
from dumpcmp.align.mesh import assemble
from dumpcmp.align.mesh.deliveries import (
    Traffic,
    collective_keys,
    is_collective,
    keeps_shape,
    source_of,
)
from dumpcmp.comparing.side import archive_at
from dumpcmp.judge.tolerances import noise
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.layouts import Layout, Mode, parse_layout
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.row import Judgement, Metrics, Row, Verdict
from dumpcmp.nouns.value import Value

if TYPE_CHECKING:
    from dumpcmp.comparing.task import Held, Measured, Task

COLLECTIVE = "collective"  # the pass that pairs the values of collectives
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Laid:
    """How both sides of a pair became whole, and what was noticed on the way."""

    note: str = ""  # how the shards became whole
    layout: str = ""  # the target's, as a sentence
    is_solved: bool = False  # nobody stated it
    finding: str = ""  # replicas that differ: a failure whatever the metrics say
    remark: str = ""  # what a difference looks like, rank by rank

    def speak(self, judgement: Judgement) -> Judgement:
        """`judgement` in the light of what was noticed."""
        if self.finding and not judgement.verdict.fails:
            return replace(judgement, verdict=Verdict.FAIL, reason=self.finding)
        if self.remark and judgement.verdict.fails:
            return replace(judgement, reason=f"{judgement.reason}; {self.remark}")
        return judgement


def is_partitioned(held: Held) -> bool:
    """Whether a value lies on several ranks, or says how it lies over a mesh."""
    return len(held.records) > 1 or bool(held.records[0].layout)


Sides = tuple[assemble.Assembled, assemble.Assembled]  # golden and target


def lay(golden: Held, target: Held, limit: float, assumed: Layout | None = None) -> Sides:
    """Put both sides together; `limit` is the error up to which a layout fits."""
    return assemble.assemble(shares_of(golden), shares_of(target), limit, assumed)


def noticed(sides: Sides, metrics: Metrics, limit: float) -> Laid:
    """What to say of `sides` now that they are measured: how they lay, and who differs."""
    golden, target = sides
    apart = [d for side in sides for d in side.disagreements if d.rel_l2 > limit]
    remark = ""
    if apart or not (metrics.equal or metrics.rel_l2 <= limit):
        remark = assemble.explain(golden, target, metrics, limit)
    finding = remark or str(apart[0]) if apart else ""
    note = _how(golden, target)
    return Laid(note, target.layout, target.basis is assemble.Basis.SOLVED, finding, remark)


def unread(finding: str, remark: str = "") -> Laid:
    """What was noticed of a pair whose Summaries were compared, and no elements."""
    return Laid(finding=finding, remark=remark)


def shares_of(held: Held) -> assemble.Held:
    """What the ranks hold of a value, with all that is known of its layout."""
    return assemble.Held(held.records, archive_at(held.path).load, held.facts)


def _how(golden: assemble.Assembled, target: assemble.Assembled) -> str:
    if not golden.note:
        return target.note
    return f"golden: {golden.note}; target: {target.note}" if target.note else golden.note


def with_collectives(matches: Sequence[Match], golden: Listing, target: Listing) -> list[Match]:
    """`matches` and, where they ran, the values of the target's and golden's collectives.

    A collective does not change the whole value, so its partner is golden's value before it.
    """
    partner: dict[Key | None, Key | None]
    partner = {m.target: m.golden for m in matches if m.target and m.golden}
    found = [*matches]
    extra: dict[int, list[Match]] = defaultdict(list)
    last = {m.target.site: i for i, m in enumerate(matches) if m.target}
    at = -1
    for place, keys in target.places.items():
        at = last.get(place, at)
        if is_collective(place, target):
            for key in keys:
                beside = _beside(key, golden, target, partner)
                extra[at].append(Match(beside, key, COLLECTIVE))
                if beside is not None:
                    partner[key] = beside  # another collective may take it from here
    taken = {m.golden for some in extra.values() for m in some}
    alone = [Match(key, None, COLLECTIVE) for key in collective_keys(golden) if key not in taken]
    listed = [m for i, one in enumerate(found) for m in (one, *extra[i])]
    return [*extra[-1], *listed, *alone]


def _beside(
    key: Key, golden: Listing, target: Listing, partner: Mapping[Key | None, Key | None]
) -> Key | None:
    """Golden's partner for a value of the target's collective: its own, or the value moved."""
    if any(is_collective(place, golden) for place in golden.places):
        return key if key in golden.values and keeps_shape(key.op) else None
    source = source_of(key, target)
    return partner.get(source) if source else None


def agreed(rows: Sequence[Row]) -> list[Row]:
    """`rows`, where a collective alone differs: the program may have meant it, nothing followed."""
    failing = [row for row in rows if row.verdict.fails]
    if not failing or any(row.paired_by != COLLECTIVE or not row.golden_key for row in failing):
        return list(rows)
    return [_doubted(row) if row.verdict.fails else row for row in rows]


def _doubted(row: Row) -> Row:
    said = f"{row.judgement.reason}; nothing that the model computed from it differs"
    return replace(row, judgement=replace(row.judgement, verdict=Verdict.INCONCLUSIVE, reason=said))


@lru_cache(maxsize=4)
def traffic_at(path: Path) -> Traffic:
    """The collectives of the archive at `path`."""
    archive = archive_at(path)
    calls = {rank: archive.calls_of(rank) for rank in archive.ranks}

    def load(record: Record) -> Value:
        if record.kept is Kept.SUMMARY:
            raise LayoutError(
                "only summaries are kept of what the collective took and gave, so that it cannot "
                f"be checked: dump again with --keep-full '{record.key.op}'"
            )
        return archive.load(record)

    return Traffic(calls, archive.shards, load)


def check_delivery(path: Path, keys: Sequence[Key]) -> tuple[Metrics | None, Judgement]:
    """Whether each rank got from a collective what it should; a value given is judged with it."""
    slot = keys[0].slot
    if slot.startswith("grad"):
        return None, Judgement(Verdict.INCONCLUSIVE, "golden has no value that is its partner")
    traffic = traffic_at(path)
    found = [one for key in keys for one in traffic.deliveries(key)]
    if not found:
        return None, Judgement(Verdict.INCONCLUSIVE, "what the collective gave was not recorded")
    measured = [(measure(one.expected, one.got), one.rank) for one in found]
    worst, rank = max(measured, key=lambda pair: _badness(pair[0]))
    limit = noise(found[0].got.dtype.eps)
    if _badness(worst) <= limit:
        return worst, Judgement(Verdict.PASS, "", limit)
    reason = f"rank {rank} did not get what the ranks gave: rel_l2 {worst.rel_l2:.3g}"
    return worst, Judgement(Verdict.FAIL, reason, limit)


def _badness(metrics: Metrics) -> float:
    if metrics.equal or not metrics.count:
        return 0.0
    return (
        metrics.rel_l2 if metrics.nonfinite_agree and not math.isnan(metrics.rel_l2) else math.inf
    )


def second_look(tasks: Mapping[int, Task], measured: Mapping[int, Measured]) -> dict[int, Task]:
    """The pairs that no layout fitted and that have a like one of a known layout: with that."""
    known: dict[Key, Counter[str]] = defaultdict(Counter)
    for i, task in tasks.items():
        if sentence := _sentence(measured[i]):
            known[_like(task.target.first.key)][sentence] += 1
    found = {}
    for i, task in tasks.items():
        like = known.get(_like(task.target.first.key))
        if measured[i].unsolved and like:
            found[i] = replace(task, assumed=parse_layout(like.most_common(1)[0][0]))
    return found


def unlike(
    matches: Sequence[Match], measured: Mapping[int, Measured]
) -> Iterator[tuple[int, Judgement]]:
    """Module outputs that lie in partial terms, where a like module has them reduced."""
    outputs = {
        i: (pair.target, laid)
        for i, pair in enumerate(matches)
        if pair.target and pair.target.slot.startswith("output") and "/" not in pair.target.op
        if (laid := measured[i].laid if i in measured else None) is not None
    }
    reduced = {_like(key): key.op for key, laid in outputs.values() if not _is_partial(laid.layout)}
    for i, (key, laid) in outputs.items():
        other = reduced.get(_like(key))
        if other is not None and laid.is_solved and _is_partial(laid.layout):
            said = f"REPLICA: the ranks hold partial terms, in {other} they hold the sum"
            yield i, Judgement(Verdict.FAIL, said)


def _sentence(measured: Measured) -> str:
    laid = measured.laid
    return laid.layout if laid else ""


def _is_partial(sentence: str) -> bool:
    return any(p.mode is Mode.PARTIAL for p in parse_layout(sentence).over)


def _like(key: Key) -> Key:
    """What `key` and its likes in other layers and steps have in common."""
    return replace(key, step=0, op=Op(_NUMBER.sub("*", key.op)))
