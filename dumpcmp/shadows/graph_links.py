"""The program of a compiled run: its graphs say which values are one, whether stored or not.

A kernel stores few of the values that its graph has. The others have a name and no numbers here, so
that the program has no gaps. What enters a graph is known again by its bytes: as a weight, as an
input of the model, or as what code before the graph gave out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dumpcmp.nouns.graph_runs import GraphRun, ValueOfGraph, read_runs
from dumpcmp.nouns.key import ROOT, Key, Slot
from dumpcmp.nouns.record import TWIN, Call, Kept, Record

INSIDE = "no kernel stores it"  # the problem of a value that only its graph tells of
_KERNEL = "kernel "  # how it is told, in memory alone, which kernel stored a value


def kernel_of(record: Record) -> str:
    """The kernel that stored a value, and which call of it; empty where none did."""
    return record.seen_in.removeprefix(_KERNEL) if record.seen_in.startswith(_KERNEL) else ""


def is_stored(record: Record) -> bool:
    """Whether the run had this value in memory, and all of it was kept."""
    return record.kept is Kept.FULL and not record.problem and not record.is_twin


def with_graph_links(
    records: Mapping[Key, Record], calls: Sequence[Call], effects: Iterable[Call], rank: int
) -> dict[Key, Record]:
    """The `records` of a rank's step, and those of values that only its graphs tell of."""
    runs = list(read_runs(effects))
    if not runs:
        return dict(records)
    return _Linking(records, calls, rank, runs).linked()


@dataclass(eq=False)
class _Linking:
    records: Mapping[Key, Record]
    calls: Sequence[Call]
    rank: int
    runs: Sequence[GraphRun]
    found: dict[Key, Record] = field(init=False)
    _orders: dict[tuple[str, int], int] = field(init=False)
    _known: dict[tuple[object, ...], list[Key]] = field(init=False)

    def __post_init__(self) -> None:
        self.found = dict(self.records)
        self._orders = {(call.op, call.call): call.order for call in self.calls}
        self._weights = dict[str, list[Key]]()
        for key in self.records:
            if key.slot.is_weight:
                self._weights.setdefault(key.op.module, []).append(key)
        self._site = next((call.site for call in self.calls), None)

    def linked(self) -> dict[Key, Record]:
        stored = {
            self._key(place): f"{_KERNEL}{run.number}{_direction(place)} {kernel}"
            for run in self.runs
            for place, kernel in run.stored.items()
        }
        entering = []
        for run in self.runs:
            for value in run.values:
                first = self._link(value, stored)
                if first.slot.is_input:
                    entering.append(first)
        self._known = self._by_bytes()
        for key in (*entering, *self._returned()):
            self._know_again(key)
        return self.found

    def _key(self, place: tuple[str, int, str]) -> Key:
        assert self._site is not None
        return Key(self._site.model, self._site.step, *place)

    def _link(self, value: ValueOfGraph, stored: Mapping[Key, str]) -> Key:
        """Let all places of a value of a graph be one value, under the name of the first."""
        keys = [self._key(place) for place in value.places]
        first = keys[0]
        held = [self._resolved(self.records[key]) for key in keys if key in self.records]
        held.sort(key=lambda record: (not record.kept.holds, record.is_twin))
        kernel = next((stored[key] for key in keys if key in stored), "")
        order = self._orders.get((first.op, first.call), 0)
        if held:
            seen_in = TWIN if held[0].is_twin else kernel
            one = replace(held[0], key=first, order=order, same_as=None, seen_in=seen_in)
        else:
            one = Record(
                first, order, value.dtype, value.shape or (), value.stride or (), rank=self.rank,
                kept=Kept.NOTHING, problem=INSIDE,
            )  # fmt: skip
        self.found[first] = one
        for key in keys[1:]:
            order = self._orders.get((key.op, key.call), 0)
            self.found[key] = replace(one, key=key, order=order, same_as=first)
        return first

    def _resolved(self, record: Record) -> Record:
        seen = {record.key}
        while record.same_as is not None and record.same_as in self.records:
            record = self.records[record.same_as]
            if record.key in seen:
                break  # a damaged archive: links never run in circles
            seen.add(record.key)
        return record

    def _by_bytes(self) -> dict[tuple[object, ...], list[Key]]:
        """Weights, inputs of the model and what calls gave out, by their bytes."""
        found: dict[tuple[object, ...], list[Key]] = {}
        for key, record in self.found.items():
            is_start = key.slot.is_weight or (key.op == ROOT and key.slot.is_input)
            is_given = key.slot.is_output and not key.op.is_module
            if (is_start or is_given) and record.same_as is None and (name := _bytes_of(record)):
                found.setdefault(name, []).append(key)
        return found

    def _returned(self) -> Iterator[Key]:
        """What the model gave out that is linked to nothing."""
        for key, record in self.records.items():
            if key.op == ROOT and key.slot.is_output and record.same_as is None:
                yield key

    def _know_again(self, key: Key) -> None:
        """Link what enters a graph to where it came from."""
        record = self.found[key]
        name = _bytes_of(record)
        known = self._known.get(name, ()) if name else ()
        before = [other for other in known if other != key and self._is_before(other, key)]
        if before:
            source = max(before, key=lambda other: self._nearness(other, key))
            self.found[key] = replace(record, same_as=source)
        elif key.slot.is_input and not key.op.is_module:
            self._name_after_weight(key, record)

    def _name_after_weight(self, key: Key, record: Record) -> None:
        """Give a weight its own name that was kept whole only where a graph took it."""
        alike = [
            other
            for other in self._weights.get(key.op.module, ())
            if (self.found[other].dtype, self.found[other].shape) == (record.dtype, record.shape)
        ]
        if len(alike) == 1 and self.found[alike[0]].kept is Kept.SUMMARY:
            (weight,) = alike
            self.found[weight] = replace(record, key=weight, order=self.found[weight].order)
            self.found[key] = replace(record, same_as=weight)

    def _is_before(self, other: Key, key: Key) -> bool:
        if other.slot.is_weight or other.slot.is_input or key.op == ROOT:
            return True
        return self.found[other].order < self.found[key].order

    def _nearness(self, other: Key, key: Key) -> tuple[bool, bool, bool, int]:
        """Which of several with the same bytes it is: a weight of its module, or what came last."""
        is_own = other.slot.is_weight and other.op.module == key.op.module
        is_input = other.op == ROOT and other.slot.is_input
        return is_own, is_input, other.slot.is_weight, self.found[other].order


def _direction(place: tuple[str, int, str]) -> str:
    """Forward and backward of one run have kernels of the same names."""
    return "-backward" if Slot(place[2]).is_gradient else ""


def _bytes_of(record: Record) -> tuple[object, ...]:
    """By what bytes are known again; nothing where they are not known, or could be anything."""
    if not record.digest or record.kept is not Kept.FULL or record.problem:
        return ()
    is_telling = record.key.slot.is_weight or math.prod(record.shape) > 1
    return (record.digest, record.dtype, record.shape) if is_telling else ()


def without_graphs(calls: Iterable[Call], effects: Iterable[Call]) -> str:
    """Why the program of a compiled step is not known; empty where it is known."""
    if not any(call.is_compiled for call in calls) or any(True for _ in read_runs(effects)):
        return ""
    return "this archive of a compiled run does not tell of its graphs: dump it again"
