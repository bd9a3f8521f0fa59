"""What a collective must give: the reduction, the joining or the copy of what the ranks gave."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dumpcmp.align.match import Listing
from dumpcmp.align.mesh.reduce import reduce_terms
from dumpcmp.align.renaming import split_op
from dumpcmp.nouns.errors import LayoutError
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.layouts import REDUCTIONS
from dumpcmp.nouns.record import Call, Record
from dumpcmp.nouns.value import Value

COLLECTIVES = frozenset(
    """
    all_reduce all_gather reduce_scatter all_to_all broadcast reduce gather scatter send recv
    """.split()  # noqa: SIM905
)


def is_collective(op: str) -> bool:
    """Whether `op` is a collective, which moves values between ranks and computes none."""
    return split_op(op)[1] in COLLECTIVES


def without_collectives(listing: Listing) -> Listing:
    """What the model itself does; collectives differ between runs by their nature."""
    kept = {key: records for key, records in listing.values.items() if not is_collective(key.op)}
    return Listing(kept, listing.calls)


def collective_keys(listing: Listing) -> list[Key]:
    """The values of all collectives."""
    return [key for key in listing.values if is_collective(key.op)]


_IN_PLACE = frozenset(("all_reduce", "broadcast", "reduce"))  # give out the shape that they take
_LETTERS = frozenset(("send", "recv"))


def keeps_shape(op: str) -> bool:
    """Whether a collective gives out the shape that it takes, so that its output is a value."""
    return split_op(op)[1] in _IN_PLACE


def source_of(key: Key, listing: Listing) -> Key | None:
    """The value of the model that the value `key` of a collective is, in whatever layout.

    A collective changes how a value lies over the ranks and never the whole value: what it
    gives out is what it was given, and so are their gradients. Where it rearranges the elements
    to move them, as a gather along an inner dim does, only what it was given is such a value.
    """
    name = split_op(key.op)[1]
    if name in _LETTERS or (name not in _IN_PLACE and not key.slot.startswith("input")):
        return None
    call = listing.calls.get(key.site)
    if call is not None and _words(call).get("op", "sum") not in ("sum", "avg"):
        return None
    gradient = key.slot.startswith("grad_")
    given = [k for k in listing.places[key.site] if k.slot.startswith("input.")]
    if len(given) != 1:
        return None
    found = next((r.same_as for r in listing.values[given[0]] if r.same_as is not None), None)
    if found is None or not gradient:
        return found
    return Key(found.model, found.step, found.op, found.call, f"grad_{found.slot}")


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
        if split_op(key.op)[1] == "send":
            return [self._received(record) for record in self.shards(key.site.key("input.0"))]
        slot = key.slot if key.slot.startswith("output") else "output.0"
        found = []
        for record in self.shards(key.site.key(slot)):
            call = self.calls[record.rank][key.site]
            expected = self._expected(record, call, _words(call))
            found.append(Delivery(record.rank, expected, self.load(record)))
        return found

    def _received(self, record: Record) -> Delivery:
        words = _words(self.calls[record.rank][record.key.site])
        group = words["group"]
        receiver = group[words["dst"]]
        letter = (group.index(record.rank), receiver, words["tag"], words["number"])
        place = self._letters.get(("recv", *letter))
        if place is None:
            raise LayoutError(f"rank {receiver} received it outside of every step of its model")
        got = next(r for r in self.shards(Key(*place, "output.0")) if r.rank == receiver)
        return Delivery(receiver, self.load(record), self.load(got))

    def _expected(self, record: Record, call: Call, words: Mapping[str, Any]) -> Value:
        name = split_op(call.op)[1]
        group: list[int] = words["group"]
        mine = group.index(record.rank)
        if name == "recv":
            return self._sent(record, words)
        given = [self._given(record.key, rank) for rank in group]
        slot = int(record.key.slot.partition(".")[2] or 0)
        match name:
            case "all_reduce" | "reduce":
                return _reduced([values[slot] for values in given], words)
            case "broadcast":
                root: int = words.get("root_rank", words.get("src", 0))
                return given[root][slot]
            case "reduce_scatter":
                return _scattered(given, words, mine, len(group))
            case "all_gather" | "gather":
                return _gathered(given, record, slot)
            case "all_to_all":
                return _exchanged(given, record, mine, slot, words)
            case _:
                return given[int(words.get("root_rank", 0))][mine]

    def _given(self, key: Key, rank: int) -> list[Value]:
        """All that `rank` gave to the collective, in order."""
        values = []
        for number in range(1024):
            slot = f"input.{number}"
            given = Key(key.model, key.step, key.op, key.call, slot)
            record = next((r for r in self.shards(given) if r.rank == rank), None)
            if record is None:
                break
            values.append(self.load(record))
        if not values:
            raise LayoutError(
                f"rank {rank} left nothing of {key.op}#{key.call}",
                hint="dumpcmp audit names the ranks that are missing",
            )
        return values

    def _sent(self, record: Record, words: Mapping[str, Any]) -> Value:
        """What the sender sent: a send and its receive have the same number between two ranks."""
        group = words["group"]
        sender = group[words["src"]]
        letter = (group.index(record.rank), sender, words["tag"], words["number"])
        place = self._letters.get(("send", *letter))
        if place is None:
            raise LayoutError(
                f"rank {sender} left no record of what it sent to rank {record.rank}",
                hint="dumpcmp audit says which rank's archive is not complete",
            )
        return self.load(next(r for r in self.shards(Key(*place, "input.0")) if r.rank == sender))

    @cached_property
    def _letters(self) -> dict[tuple[str, int, int, int, int], Site]:
        """Every send and receive: its name, the peer's place in the group, rank, tag, number."""
        found: dict[tuple[str, int, int, int, int], Site] = {}
        for rank, calls in self.calls.items():
            for place, call in calls.items():
                name = split_op(place.op)[1]
                if name in _LETTERS:
                    words = _words(call)
                    peer = words["dst" if name == "send" else "src"]
                    found[name, peer, rank, words["tag"], words["number"]] = place
        return found


def _words(call: Call) -> dict[str, Any]:
    """What the call says besides its tensors: group, reduction, root, splits."""
    said = json.loads(call.arguments).get("kwargs", {})
    return {word: value for word, value in said.items() if not isinstance(value, dict)}


def _reduced(terms: Sequence[Value], words: Mapping[str, Any]) -> Value:
    reduction = words.get("op", "sum")
    if reduction not in REDUCTIONS:
        raise LayoutError(f"the reduction {reduction!r} cannot be checked")
    return reduce_terms(terms, reduction, len(terms) if reduction == "avg" else 1)


def _scattered(
    given: Sequence[Sequence[Value]], words: Mapping[str, Any], mine: int, size: int
) -> Value:
    if len(given[0]) > 1:
        return _reduced([values[mine] for values in given], words)
    whole = _reduced([values[0] for values in given], words)
    return Value(whole.dtype, np.split(whole.bits, size)[mine])


def _gathered(given: Sequence[Sequence[Value]], record: Record, slot: int) -> Value:
    if given[0][0].shape == record.shape:
        return given[slot][0]
    dtype = given[0][0].dtype
    joined = np.concatenate([values[0].bits.reshape(-1) for values in given])
    return Value(dtype, joined.reshape(record.shape))


def _exchanged(
    given: Sequence[Sequence[Value]],
    record: Record,
    mine: int,
    slot: int,
    words: Mapping[str, Any],
) -> Value:
    if len(given[0]) > 1:
        return given[slot][mine]
    if words.get("input_split_sizes"):
        raise LayoutError("an all_to_all of uneven parts cannot be checked from one rank's splits")
    parts = [np.split(values[0].bits, len(given))[mine] for values in given]
    return Value(given[0][0].dtype, np.concatenate(parts).reshape(record.shape))
