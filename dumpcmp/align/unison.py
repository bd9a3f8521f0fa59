"""Numbers the calls of all ranks alike, where one runs more of an op than the others do.

A call is known by its op and number. What a rank runs besides shifts the numbers of its later
calls, and they would be held against other calls of the other ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from dumpcmp.align.listing import Listing
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
    odd = _odd(listing) if listing.num_ranks > 1 else {}
    if not odd:
        return listing
    calls = calls_by_rank()
    moves: _Moves = {}
    for place, numbers in odd.items():
        moves |= _moves(place, numbers, calls)
    return _Renumbering(listing, calls, moves).renumbered() if moves else listing


def _odd(listing: Listing) -> dict[_Function, dict[int, list[int]]]:
    """The functions of which ranks ran not the same calls: the numbers of each rank's."""
    found: dict[_Function, dict[int, dict[int, None]]] = defaultdict(lambda: defaultdict(dict))
    for key, records in listing.values.items():
        if not key.op.is_module and key.op.function not in _COLLECTIVES:
            ranks = found[key.model, key.step, key.op]
            for record in records:
                ranks[record.rank][key.call] = None
    found_in_order = {
        place: {rank: sorted(numbers) for rank, numbers in ranks.items()}
        for place, ranks in found.items()
    }
    return {
        place: ranks
        for place, ranks in found_in_order.items()
        if len({tuple(numbers) for numbers in ranks.values()}) > 1
    }


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
