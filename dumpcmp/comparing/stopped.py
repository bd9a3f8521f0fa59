"""Which ranks of a run have less than the others, and where they stopped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.key import Site, Slot
from dumpcmp.nouns.record import Call, Phase
from dumpcmp.nouns.spoken import said_of

When = tuple[int, int]  # a step, and the place in its order


def stopped_ranks(archive: Archive) -> dict[range, str]:
    """The ranks that crashed, are missing or have fewer steps, and what is known of each.

    Who is missing comes first, as runs, then who stopped first: the others may have waited for it.
    """
    if archive.world_size == 1:
        return {}
    found: list[tuple[When, int, str]] = []
    crashed = [rank for rank, facts in archive.run.items() if facts.get("run", {}).get("error")]
    stopped = {*crashed, *archive.cut_short}
    ended = archive.calls_by_rank(stopped) if stopped else {}  # which reads all there is
    for rank, calls in ended.items():
        end = _end(archive, rank, calls.values())
        found.append((_when(end), rank, _stopped(end)))
    found += [one for one in _lacking(archive) if one[1] not in ended]
    missing = dict.fromkeys(archive.missing_runs, "is missing")
    return missing | {range(rank, rank + 1): said for _, rank, said in sorted(found)}


def said_of_ranks(stopped: Mapping[range, str]) -> Iterator[str]:
    """A sentence for all ranks that stopped alike."""
    alike: dict[str, list[range]] = defaultdict(list)
    for run, where in stopped.items():
        alike[where].append(run)
    yield from (said_of(ranks, where) for where, ranks in alike.items())


def _when(end: Call | None) -> When:
    return (end.step, end.order) if end else (-1, -1)


def _end(archive: Archive, rank: int, calls: Iterable[Call]) -> Call | None:
    """The last of these `calls` that the rank began; the weights of others are noted at the end."""
    own = [call for call in calls if call.phase is not Phase.RECOMPUTE]
    step = max((call.step for call in own), default=0)
    slots: dict[Site, list[Slot]] = defaultdict(list)
    for model in {call.model for call in own if call.step == step}:
        for key, records in archive.shards_at(model, step).items():
            if any(record.rank == rank for record in records):
                slots[key.site].append(key.slot)
    begun = [call for call in own if call.step < step or not _is_idle(slots[call.site])]
    return max(begun, key=_when, default=None)


def _is_idle(slots: Collection[Slot]) -> bool:
    """Whether a call has weights and nothing else."""
    return bool(slots) and all(slot.is_weight for slot in slots)


def _stopped(end: Call | None) -> str:
    """Where the record of a rank ends."""
    if end is None:
        return "stopped before its first op"
    return f"stopped in {end.op}, call {end.call} of token {end.step}"


def _lacking(archive: Archive) -> Iterator[tuple[When, int, str]]:
    """The ranks that lack steps which others have of a model that they have, and which."""
    found: set[int] = set()
    for model in archive.models:
        steps = archive.steps(model)
        own: dict[int, list[int]] = defaultdict(list)
        for step in steps:
            for rank in archive.ranks_with(model, step):
                own[rank].append(step)
        for rank, has in own.items():
            if len(has) < len(steps) and rank not in found:
                found.add(rank)
                yield (max(has) + 1, -1), rank, _told_lacking(model, max(has), max(steps))


def _told_lacking(model: str, last: int, others: int) -> str:
    if last < others:
        return f"has no step after {last}; others go to {others}"
    return f"lacks steps of {model}"
