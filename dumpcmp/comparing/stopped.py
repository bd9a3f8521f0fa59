"""Which ranks of a run have less than the others, and where they stopped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from dumpcmp.archive.read.reader import Archive
from dumpcmp.judge import Evidence
from dumpcmp.nouns.record import Phase
from dumpcmp.nouns.spoken import ranks_named


def stopped_ranks(archive: Archive) -> dict[int, str]:
    """The ranks that crashed, are missing or have fewer steps, and what is known of each."""
    if archive.world_size == 1:
        return {}
    found = dict.fromkeys(archive.missing_ranks, "is missing")
    for rank, facts in archive.run.items():
        error = facts.get("run", {}).get("error")
        if error or rank in archive.cut_short:
            found[rank] = _stopped(archive, rank)
        elif lacking := _lacking(archive, rank):
            found[rank] = lacking
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


def _stopped(archive: Archive, rank: int) -> str:
    """Where the record of a rank ends."""
    calls = [call for call in archive.calls_of(rank).values() if call.phase is not Phase.RECOMPUTE]
    if not calls:
        return "stopped before its first op"
    last = max(calls, key=lambda call: (call.step, call.order))
    return f"stopped in {last.op}, call {last.call} of token {last.step}"


def _lacking(archive: Archive, rank: int) -> str:
    """Which steps other ranks have of the models that this one has."""
    for model in archive.models:
        steps = archive.steps(model)
        own = [step for step in steps if rank in archive.ranks_with(model, step)]
        if own and len(own) < len(steps):
            last = f"{max(own)}; others go to {max(steps)}" if max(own) < max(steps) else ""
            return f"has no step after {last}" if last else f"lacks steps of {model}"
    return ""
