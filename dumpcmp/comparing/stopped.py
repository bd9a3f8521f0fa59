"""Which ranks of a run have less than the others, and where they stopped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from dumpcmp.archive.read.reader import Archive
from dumpcmp.judge import Evidence
from dumpcmp.nouns.record import Call, Phase
from dumpcmp.nouns.spoken import ranks_named


def stopped_ranks(archive: Archive) -> dict[int, str]:
    """The ranks that crashed, are missing or have fewer steps, and what is known of each."""
    if archive.world_size == 1:
        return {}
    found = dict.fromkeys(archive.missing_ranks, "is missing")
    lacking = _lacking(archive)
    crashed = [rank for rank, facts in archive.run.items() if facts.get("run", {}).get("error")]
    stopped = {*crashed, *archive.cut_short}
    ended = archive.calls_by_rank(stopped) if stopped else {}  # which reads all there is
    for rank in archive.run:
        if rank in ended:
            found[rank] = _stopped(ended[rank].values())
        elif rank in lacking:
            found[rank] = lacking[rank]
    return found


def said_of_ranks(stopped: Mapping[int, str]) -> Iterator[str]:
    """A sentence for all ranks that stopped alike."""
    alike: dict[str, list[int]] = defaultdict(list)
    for rank, where in stopped.items():
        alike[where].append(rank)
    yield from (f"{ranks_named(ranks)} {where}" for where, ranks in alike.items())


def open_for(
    evidence: Iterable[Evidence], golden: Mapping[int, str], target: Mapping[int, str]
) -> list[Evidence]:
    """`evidence`, where one side is alone, with the ranks that stopped: who knows who lacks it."""
    lost = "; ".join([*said_of_ranks(golden), *said_of_ranks(target)])
    if not lost:
        return list(evidence)
    return [one if one.pair.both else replace(one, lost=lost) for one in evidence]


def _stopped(calls: Iterable[Call]) -> str:
    """Where the record of a rank ends that has these `calls`."""
    own = [call for call in calls if call.phase is not Phase.RECOMPUTE]
    if not own:
        return "stopped before its first op"
    last = max(own, key=lambda call: (call.step, call.order))
    return f"stopped in {last.op}, call {last.call} of token {last.step}"


def _lacking(archive: Archive) -> dict[int, str]:
    """The ranks that lack steps which others have of a model that they have, and which."""
    found: dict[int, str] = {}
    for model in archive.models:
        steps = archive.steps(model)
        own: dict[int, list[int]] = defaultdict(list)
        for step in steps:
            for rank in archive.ranks_with(model, step):
                own[rank].append(step)
        for rank, has in own.items():
            if len(has) < len(steps):
                found.setdefault(rank, _told_lacking(model, max(has), max(steps)))
    return found


def _told_lacking(model: str, last: int, others: int) -> str:
    if last < others:
        return f"has no step after {last}; others go to {others}"
    return f"lacks steps of {model}"
