"""Numbers the calls of all ranks alike, where one runs more of an op than the others do.

A call is known by its op and number. What a rank runs besides shifts the numbers of its later
calls, and they would be held against other calls of the other ranks. Stages of a pipeline that run
the same op of the whole model, such as a copy of what they were sent, run different calls of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from dumpcmp.align.listing import Listing
from dumpcmp.align.stages import Holder, stages_of
from dumpcmp.nouns.arithmetic import Collective
from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.record import Call, Record

_MOST = 400  # calls of an op in one module: of more, lines of code are not looked at

CallsByRank = Mapping[int, Mapping[Site, Call]]
_Function = tuple[str, int, Op]  # model, step, op
_Moves = dict[tuple[int, Site], Site]  # by rank: what a call is to be called
_COLLECTIVES = frozenset(map(str, Collective))


def in_unison(listing: Listing, calls_by_rank: Callable[[], CallsByRank]) -> Listing:
    """`listing` with calls of one line of code under one number, whatever rank ran them.

    What a rank runs alone has a number after all others. Records keep their own keys. Collectives
    stay as they are: that ranks number them alike is what they are joined by.
    """
    if listing.num_ranks == 1:
        return listing
    stages = stages_of(listing.values)
    teams = list(_teams(listing, stages))
    odd = [team for team in teams if team.differ]
    if not odd and len(set(stages.values())) < 2:
        return listing
    calls = calls_by_rank()
    moves: _Moves = {}
    for team in odd:
        moves |= _moves(team.place, team.numbers, calls)
    moves = _apart(teams, moves) if stages else moves
    return _Renumbering(listing, calls, moves).renumbered() if moves else listing


@dataclass(frozen=True)
class _Team:
    """The ranks that run a function in one stage of a pipeline, or all: the calls of each."""

    place: _Function
    stage: int | None
    numbers: Mapping[int, Sequence[int]]

    @property
    def differ(self) -> bool:
        """Whether ranks ran not the same calls."""
        return len({tuple(own) for own in self.numbers.values()}) > 1


def _teams(listing: Listing, stages: Mapping[Holder, int]) -> Iterator[_Team]:
    """Who runs each function, in the order of the stages."""
    found: dict[tuple[_Function, int | None], dict[int, dict[int, None]]] = {}
    for key, records in listing.values.items():
        if not key.op.is_module and key.op.function not in _COLLECTIVES:
            place = key.model, key.step, key.op
            for record in records:
                stage = stages.get(Holder(record.rank, key.model))
                ranks = found.setdefault((place, stage), defaultdict(dict))
                ranks[record.rank][key.call] = None
    for place, stage in sorted(found, key=lambda item: item[1] or 0) if stages else found:
        ranks = found[place, stage]
        yield _Team(place, stage, {rank: sorted(own) for rank, own in ranks.items()})


def _apart(teams: Iterable[_Team], moves: _Moves) -> _Moves:
    """`moves`, with the calls of each stage numbered after those of the stages before it."""
    begins: dict[tuple[int, Op], int] = defaultdict(int)  # in whatever model: stages are one
    found: _Moves = {}
    for team in teams:
        _, step, op = team.place
        begin = begins[step, op] if team.stage is not None else 0
        own = [(rank, Site(*team.place, n)) for rank, ns in team.numbers.items() for n in ns]
        for rank, old in own:
            new = moves.get((rank, old), old)
            found[rank, old] = new._replace(call=begin + new.call)
            begins[step, op] = max(begins[step, op], begin + new.call + 1)
    return {call: new for call, new in found.items() if call[1] != new}


def _moves(place: _Function, numbers: Mapping[int, Sequence[int]], calls: CallsByRank) -> _Moves:
    """What the calls of one op are to be called, where that is not what they are."""
    lines = {rank: _lines(place, own, calls.get(rank, {})) for rank, own in numbers.items()}
    known = all(line for own in lines.values() for line in own)
    if not known or any(len(own) > _MOST for own in lines.values()):
        return {}
    kinds: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank, own in lines.items():
        kinds[tuple(own)].append(rank)
    usual = min(kinds, key=lambda kind: (-len(kinds[kind]), len(kind), kinds[kind]))  # or shortest
    names = list(numbers[kinds[usual][0]])
    free = max(names) + 1
    found: _Moves = {}
    for kind, ranks in kinds.items():
        if kind == usual:
            continue
        new = list(_numbered(usual, kind, names, free))
        free = max(free, *(number + 1 for number in new))
        found |= {
            (rank, Site(*place, old)): Site(*place, number)
            for rank in ranks
            for old, number in zip(numbers[rank], new, strict=True)
        }
    return found if any(old != new for (_, old), new in found.items()) else {}


def _lines(place: _Function, numbers: Sequence[int], calls: Mapping[Site, Call]) -> list[str]:
    found = (calls.get(Site(*place, number)) for number in numbers)
    return [call.source if call else "" for call in found]


def _numbered(
    usual: Sequence[str], own: Sequence[str], names: Sequence[int], free: int
) -> Iterator[int]:
    """The numbers of calls that stand in the lines `own`; what is not `usual` has a new one."""
    same: dict[int, int] = {}
    for block in SequenceMatcher(None, usual, own, autojunk=False).get_matching_blocks():
        same |= {block.b + n: names[block.a + n] for n in range(block.size)}
    for at in range(len(own)):
        if at in same:
            yield same[at]
        else:
            yield free
            free += 1


@dataclass(frozen=True)
class _Renumbering:
    """A listing in which some calls of some ranks get other names."""

    listing: Listing
    calls: CallsByRank
    moves: _Moves

    def renumbered(self) -> Listing:
        values: dict[Key, list[Record]] = defaultdict(list)
        for key, records in self.listing.values.items():
            for record in records:
                same = record.same_as
                linked = replace(record, same_as=self._key(record.rank, same)) if same else record
                values[self._key(record.rank, key)].append(linked)
        found = {key: tuple(sorted(own, key=lambda r: r.rank)) for key, own in values.items()}
        return replace(self.listing, values=found, calls=self._calls())

    def _key(self, rank: int, key: Key) -> Key:
        moved = self.moves.get((rank, key.site))
        return moved.key(key.slot) if moved else key

    def _calls(self) -> dict[Site, Call]:
        """The calls under their new names, each as the lowest rank that has it saw it."""
        touched = {site[:3] for _, site in self.moves}
        found = {site: c for site, c in self.listing.calls.items() if site[:3] not in touched}
        for rank in sorted(self.calls):
            for site, call in self.calls[rank].items():
                if site[:3] in touched:
                    new = self.moves.get((rank, site), site)
                    found.setdefault(new, replace(call, call=new.call))
        return found
