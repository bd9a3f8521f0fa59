"""Closes programs where code that was not recorded copied a value: what has its bytes is it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.record import Call, Kept, Record
from dumpcmp.nouns.value import to_torch
from dumpcmp.shadows.fingerprints import is_telling
from dumpcmp.shadows.own_operations import FoundByElements
from dumpcmp.shadows.program import Node, Program, ValueId

_OUTPUT = "output.0"
_Bytes = tuple[str, str, int]  # digest, dtype, number of elements


@dataclass(frozen=True, slots=True)
class Copy(FoundByElements):
    """A value as another call was given it."""

    shape: tuple[int, ...]
    slot: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def expression(self) -> Hashable:
        return "copy", self.shape

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same elements."""
        return {_OUTPUT: given["input.0"].reshape(self.shape)}


@dataclass(frozen=True, slots=True)
class Rechunked(FoundByElements):
    """A value cut along one dim, and joined along another, as collectives need it."""

    num: int
    cut: int
    joined: int
    length: int  # of the dim that is joined: what the last chunks are filled up with is left out
    slot: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def expression(self) -> Hashable:
        return "rechunked", self.num, self.cut, self.joined, self.length

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same elements in another order."""
        joined = torch.cat(given["input.0"].chunk(self.num, self.cut), self.joined)
        return {_OUTPUT: joined.narrow(self.joined, 0, self.length)}


@dataclass(frozen=True, slots=True)
class FilledUp(FoundByElements):
    """A value with zeros behind it along one dim, as collectives need parts of one size."""

    dim: int
    num: int
    slot: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def expression(self) -> Hashable:
        return "filled up", self.dim, self.num

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The elements, and the zeros."""
        value = given["input.0"]
        shape = list(value.shape)
        shape[self.dim] = self.num
        return {_OUTPUT: torch.cat([value, value.new_zeros(shape)], self.dim)}


@dataclass(frozen=True, slots=True)
class CutOut(FoundByElements):
    """Some neighbouring indices of one dim of a value."""

    dim: int
    first: int
    length: int
    slot: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def expression(self) -> Hashable:
        return "cut out", self.dim, self.first, self.length

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """These elements."""
        return {_OUTPUT: given["input.0"].narrow(self.dim, self.first, self.length)}


def with_copies(archive: Archive, program: Program, across: bool = True) -> Program:
    """`program`, where a leaf that has the bytes of a value computed before is made of that.

    That is on the same rank, or `across` ranks, of which nobody knows who was first.
    """
    nodes = list(_copies(archive, program, across))
    if not nodes:
        return program
    return replace(program, nodes=[*program.nodes, *nodes])


def _copies(archive: Archive, program: Program, across: bool) -> Iterator[Node]:
    made: dict[_Bytes, list[tuple[ValueId, Node]]] = {}
    for value, node in program.producers.items():
        if (found := _bytes(program.records[value])) is not None:
            made.setdefault(found, []).append((value, node))
    for leaf in program.leaves:
        record, used = program.records[leaf], _use_of(program, leaf)
        found = _bytes(record)
        if found is None or leaf.key.slot.is_weight or used is None:
            continue
        is_whole = program.num_parts > 1  # microbatches hand each other on what they are sent
        known = [(v, n) for v, n in made.get(found, ()) if is_whole or v.key.step == leaf.key.step]
        now = leaf.key.step, used.order
        own = [v for v, n in known if v.rank == leaf.rank and (v.key.step, n.call.order) < now]
        others = (
            v
            for v, _ in known
            if across and v.rank != leaf.rank and not _is_made_of(program, v, leaf)
        )
        source = own[-1] if own else next(others, None)
        if source is None and len(program.ranks) > 1:
            yield from _arranged(archive, program, leaf, used)
        if source is not None and used.call is not None and _tells(archive, record):
            copy = Copy(record.shape, used.slot)
            yield Node(leaf.rank, used.call, {"input.0": source}, {_OUTPUT: leaf}, copy)


def _is_made_of(program: Program, value: ValueId, leaf: ValueId) -> bool:
    """Whether a value was made of another, as what was received is of what was sent."""
    return any(leaf in node.takes.values() for node in program.behind([value]))


@dataclass(frozen=True, slots=True)
class _Use:
    """Where a leaf is used first: by which call, if it is not only returned."""

    order: float
    slot: str = ""
    call: Call | None = None


def _use_of(program: Program, leaf: ValueId) -> _Use | None:
    takers = program.consumers.get(leaf, ())
    if not takers:
        is_returned = any(effect.value == leaf for effect in program.effects)
        return _Use(math.inf) if is_returned and leaf.key.slot.is_output else None
    first = min(takers, key=lambda node: node.call.order)
    slot = next(slot for slot, each in first.takes.items() if each == leaf)
    return _Use(first.call.order, slot, first.call)


def _arranged(archive: Archive, program: Program, leaf: ValueId, used: _Use) -> Iterator[Node]:
    """How `leaf` was made of the last value of its rank that has its elements, in parts."""
    record = program.records[leaf]
    wanted: Tensor | None = None
    made = [
        (value, node.call)
        for value, node in program.producers.items()
        if node.call.order < used.order
    ]
    losses = (program.gradients.get(effect.value) for effect in program.effects)
    given = [(g, used.call) for g in losses if g is not None and g not in program.producers]
    for value, maker in (*reversed(made), *given):
        source = program.records[value]
        if value.rank != leaf.rank or value == leaf or maker is None:
            continue
        if source.dtype != record.dtype or source.kept is not Kept.FULL:
            continue
        is_part = bool(record.layout)
        ways = list(ways_to_cut(source.shape, record.shape, used.slot, is_uneven=is_part))
        if not ways:
            continue
        try:
            if wanted is None:
                wanted = to_torch(archive.load(record)).reshape(record.shape)
                if not is_telling(wanted):
                    return
            held = to_torch(archive.load(source)).reshape(source.shape)
        except DumpcmpError:
            return
        for own in ways:
            if torch.equal(own.run({"input.0": held})[_OUTPUT], wanted):
                call = used.call or maker
                yield Node(leaf.rank, call, {"input.0": value}, {_OUTPUT: leaf}, own)
                return


def ways_to_cut(
    before: tuple[int, ...], after: tuple[int, ...], slot: str, *, is_uneven: bool = False
) -> Iterator[Rechunked | FilledUp | CutOut]:
    """In which ways a value of one shape may have been made of one of another shape.

    The last of several parts may be shorter, where a layout says that it is one.
    """
    if (how := _chunks(before, after)) is not None:
        yield Rechunked(*how, slot)
    unequal = [d for d, sizes in enumerate(zip(before, after, strict=False)) if len({*sizes}) > 1]
    if len(before) == len(after) and len(unequal) == 1:
        (dim,) = unequal
        last = before[dim] - after[dim]
        if last < 0 < -last < after[dim]:
            yield FilledUp(dim, -last, slot)
        if last < 0 or not after[dim] or (before[dim] % after[dim] and not is_uneven):
            return
        for first in dict.fromkeys((*range(0, last + 1, after[dim]), last)):
            yield CutOut(dim, first, after[dim], slot)


def _chunks(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """How many chunks along which dim are joined along which, and how long that then is."""
    unequal = [
        dim for dim, sizes in enumerate(zip(before, after, strict=False)) if len({*sizes}) > 1
    ]
    if len(before) != len(after) or len(unequal) != 2:
        return None
    for cut, joined in (unequal, unequal[::-1]):
        num = before[cut] // after[cut] if after[cut] else 0
        is_whole = num > 1 and after[cut] * num == before[cut]
        if is_whole and -(-after[joined] // num) == before[joined]:
            return num, cut, joined, after[joined]
    return None


def _bytes(record: Record) -> _Bytes | None:
    numel = math.prod(record.shape)
    if not record.digest or record.kept is not Kept.FULL or numel < 2:
        return None
    return record.digest, record.dtype, numel


def _tells(archive: Archive, record: Record) -> bool:
    try:
        return is_telling(to_torch(archive.load(record)))
    except DumpcmpError:
        return False
