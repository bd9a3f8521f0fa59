"""What a collective must give: the reduction, the joining or the copy of what the ranks gave."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dumpcmp.align.listing import Listing
from dumpcmp.align.mesh.unshard import reduce_terms
from dumpcmp.nouns.arithmetic import Collective
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.given import argument_tree, damaged_arguments
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.layouts import ReduceOp
from dumpcmp.nouns.record import Call, Record
from dumpcmp.nouns.spoken import counted, ranks_named
from dumpcmp.nouns.value import Value

_COLLECTIVES = frozenset(Collective)
# Those after which the ranks together have the value that they had before, or the sum of it.
_WHOLE = frozenset(
    (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.BROADCAST)
)
_Letter = tuple[tuple[int, ...], int, int, int, int]  # group, sender, receiver, tag, number


def is_collective(site: Site, listing: Listing) -> bool:
    """Whether the call is a collective, which moves values between ranks and computes none."""
    if site.op.function not in _COLLECTIVES:
        return False
    collective, call = Collective(site.op.function), listing.calls.get(site)
    return call is None or not collective.has_namesake or call.target == collective.target


def without_collectives(listing: Listing) -> Listing:
    """What the model itself does; collectives differ between runs by their nature.

    What takes the result of a collective takes what was given to it, however that lies now.
    """
    moved = set(collective_keys(listing))
    if not moved:
        return listing
    return replace(
        listing,
        values={
            key: tuple(_from_model(record, moved, listing) for record in records)
            for key, records in listing.values.items()
            if key not in moved
        },
    )


def _from_model(record: Record, moved: Collection[Key], listing: Listing) -> Record:
    """`record` with its link through all collectives, to what the model gave to the first."""
    found = record.same_as
    while found in moved:
        assert found is not None
        given = [key for key in listing.sites[found.site] if key.slot.kind == "input"]
        got = [key for key in listing.sites[found.site] if key.slot.is_output]  # or one of a list
        whole = Collective(found.op.function) in _WHOLE and len(given) == len(got) == 1
        before = listing.record(given[0]).same_as if whole else None
        if before is None:
            return record
        found = before
    return record if found is record.same_as else replace(record, same_as=found)


def collective_keys(listing: Listing) -> list[Key]:
    """The values of all collectives."""
    return [key for key in listing.values if is_collective(key.site, listing)]


def source_of(key: Key, listing: Listing) -> Key | None:
    """The value of the model that the value `key` of a collective is, in whatever layout.

    A collective changes how a value lies over the ranks and never the whole value: what it
    gives out is what it was given, and so are their gradients. Where it rearranges the elements
    to move them, as a gather along an inner dim does, only what it was given is such a value.
    """
    collective = Collective(key.op.function)
    if collective.is_letter or not (collective.keeps_shape or key.slot.kind == "input"):
        return None
    call = listing.calls.get(key.site)
    if call and _Words(call).get("op", "sum") not in (ReduceOp.SUM, ReduceOp.AVG):
        return None
    given = [k for k in listing.sites[key.site] if k.slot.kind == "input"]
    if len(given) != 1:
        return None
    found = next((r.same_as for r in listing.values[given[0]] if r.same_as is not None), None)
    return found.site.key(found.slot.gradient) if found and key.slot.is_gradient else found


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one rank got from a collective, and what it should have got."""

    rank: int
    expected: Value
    got: Value


@dataclass(frozen=True)
class Traffic:
    """The collectives of a run, as each rank saw them."""

    calls: Mapping[int, Mapping[Site, Call]]  # of each rank
    shards: Callable[[Key], Sequence[Record]]  # the records of a value, of all ranks
    load: Callable[[Record], Value]

    def deliveries(self, key: Key) -> list[Delivery]:
        """What each rank got from the collective that has the value `key`, and should have got.

        For a value that was given, what the first output became; for a letter that was sent,
        what its receiver got.
        """
        if key.op.function in (Collective.SEND, Collective.RECV):
            slot = "input.0" if key.op.function == Collective.SEND else "output.0"
            return [self._posted(record) for record in self.shards(key.site.key(slot))]
        slot = key.slot if key.slot.is_output else "output.0"
        return [
            Delivery(record.rank, self._expected(record), self.load(record))
            for record in self.shards(key.site.key(slot))
        ]

    def groups(self, site: Site) -> str:
        """The groups in which the ranks ran the collective at `site`, by axis where that is known.

        Many groups of one axis are named by the first.
        """
        found: dict[str, dict[tuple[int, ...], None]] = {}
        for calls in self.calls.values():
            words = _Words(calls[site]) if site in calls else {}
            if "group" in words:
                found.setdefault(words.get("axis", ""), {})[tuple(words["group"])] = None
        return ", ".join(_named(axis, list(groups)) for axis, groups in found.items())

    def group_size(self, site: Site) -> int:
        """How many ranks ran the collective at `site` together."""
        calls = (calls[site] for calls in self.calls.values() if site in calls)
        return max((len(_Words(call).get("group", ())) for call in calls), default=0)

    def _posted(self, record: Record) -> Delivery:
        """The letter that `record` is one end of, as it was sent and received."""
        letter = _letter(self.calls[record.rank][record.key.site], record.rank)
        group, src, dst = letter[:3]
        sent, got = (self._letters.get((end, letter)) for end in (Collective.SEND, Collective.RECV))
        if got is None:
            raise LayoutError(f"rank {group[dst]} received it outside of every step of its model")
        if sent is None:
            raise LayoutError(
                f"rank {group[src]} left no record of what it sent to rank {group[dst]}",
                hint="dumpcmp audit says which rank's archive is not complete",
            )
        expected = self._held(sent.key("input.0"), group[src])
        return Delivery(group[dst], expected, self._held(got.key("output.0"), group[dst]))

    @cached_property
    def _letters(self) -> dict[tuple[str, _Letter], Site]:
        """Every send and every receive."""
        return {
            (site.op.function, _letter(call, rank)): site
            for rank, calls in self.calls.items()
            for site, call in calls.items()
            if site.op.function in (Collective.SEND, Collective.RECV)
        }

    def _held(self, key: Key, rank: int) -> Value:
        return self.load(next(record for record in self.shards(key) if record.rank == rank))

    def _expected(self, record: Record) -> Value:
        """What the rank of `record` must get, by what all ranks of the group gave."""
        words = _Words(self.calls[record.rank][record.key.site])
        group: list[int] = words["group"]
        mine = group.index(record.rank)
        given = [self._given(record.key.site, rank) for rank in group]
        nth = int(record.key.slot.name or 0)
        match Collective(record.key.op.function):
            case Collective.ALL_REDUCE | Collective.REDUCE:
                return _reduced([values[nth] for values in given], words)
            case Collective.BROADCAST:
                return given[int(words.get("root_rank", words.get("src", 0)))][nth]
            case Collective.REDUCE_SCATTER:
                return _scattered(given, words, mine)
            case Collective.ALL_GATHER | Collective.GATHER:
                return _gathered(given, record, nth)
            case Collective.ALL_TO_ALL:
                return _exchanged(given, record, mine, nth, self._cuts(record.key.site, group))
            case _:
                return given[int(words.get("root_rank", 0))][mine]

    def _cuts(self, site: Site, group: Sequence[int]) -> list[list[int]]:
        """The sizes of the parts that each rank sends; none where they are even."""
        calls = (self.calls[rank].get(site) for rank in group)
        return [(_Words(call).get("input_split_sizes") if call else None) or [] for call in calls]

    def _given(self, site: Site, rank: int) -> list[Value]:
        """All that `rank` gave to the collective, in order."""
        values: list[Value] = []
        for number in count():
            shards = self.shards(site.key(f"input.{number}"))
            record = next((record for record in shards if record.rank == rank), None)
            if record is None:
                break
            values.append(self.load(record))
        if not values:
            raise LayoutError(
                f"rank {rank} left nothing of {site.op}#{site.call}",
                hint="dumpcmp audit names the ranks that are missing",
            )
        return values


class _Words(dict[str, Any]):
    """What a call says besides its tensors: group, reduction, root, splits."""

    def __init__(self, call: Call) -> None:
        said = argument_tree(call).get("kwargs", {})
        super().__init__((w, value) for w, value in said.items() if not isinstance(value, dict))
        self._call = call

    def __missing__(self, word: str) -> NoReturn:
        raise damaged_arguments(self._call)


def _named(axis: str, groups: Sequence[tuple[int, ...]]) -> str:
    more = f" and {counted(len(groups) - 1, 'group')} more" if len(groups) > 1 else ""
    return f"{axis} ({ranks_named(groups[0])}{more})" if axis else f"{ranks_named(groups[0])}{more}"


def _letter(call: Call, rank: int) -> _Letter:
    """Which letter it is: both ends have the same number between two ranks of a group."""
    words = _Words(call)
    mine = words["group"].index(rank)
    ends = words.get("src", mine), words.get("dst", mine)
    return tuple(words["group"]), *ends, words["tag"], words["number"]


def _reduced(terms: Sequence[Value], words: Mapping[str, Any]) -> Value:
    reduction = words.get("op", "sum")
    if reduction not in set(ReduceOp):
        raise LayoutError(f"the reduction {reduction!r} cannot be checked")
    divisor = len(terms) if reduction == ReduceOp.AVG else 1
    return reduce_terms(terms, ReduceOp(reduction), divisor)


def _scattered(given: Sequence[Sequence[Value]], words: Mapping[str, Any], mine: int) -> Value:
    if len(given[0]) > 1:
        return _reduced([values[mine] for values in given], words)
    whole = _reduced([values[0] for values in given], words)
    return Value(whole.dtype, np.split(whole.bits, len(given))[mine])


def _gathered(given: Sequence[Sequence[Value]], record: Record, nth: int) -> Value:
    if given[0][0].shape == record.shape:
        return given[nth][0]
    joined = np.concatenate([values[0].bits.reshape(-1) for values in given])
    return _shaped(given[0][0], joined, record)


def _exchanged(
    given: Sequence[Sequence[Value]], record: Record, mine: int, nth: int, cuts: Sequence[list[int]]
) -> Value:
    """What a rank must get: its part of what each rank gave, which each has cut in its own way."""
    if len(given[0]) > 1:
        return given[nth][mine]
    parts = [
        np.split(values[0].bits, np.cumsum(cut)[:-1] if cut else len(given))[mine]
        for values, cut in zip(given, cuts, strict=True)
    ]
    return _shaped(given[0][0], np.concatenate(parts), record)


def _shaped(like: Value, joined: NDArray[np.generic], record: Record) -> Value:
    """What the ranks gave, in the shape that was got."""
    if joined.size != math.prod(record.shape):
        raise LayoutError(
            f"the ranks gave rank {record.rank} {joined.size} elements, and it got "
            f"{list(record.shape)}"
        )
    return Value(like.dtype, joined.reshape(record.shape))
