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
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.value import to_torch
from dumpcmp.shadows.fingerprints import is_telling
from dumpcmp.shadows.program import Node, Program, ValueId

_OUTPUT = "output.0"
_Bytes = tuple[str, str, int]  # digest, dtype, number of elements


@dataclass(frozen=True, slots=True)
class Copy:
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

    def held(self, *_: object) -> Replay | None:
        """Nothing is to be held against anything: it was found by its bytes."""
        return None


@dataclass(frozen=True, slots=True)
class Rechunked:
    """A value cut along one dim, and joined along another, as collectives need it."""

    num: int
    cut: int
    joined: int
    slot: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def expression(self) -> Hashable:
        return "rechunked", self.num, self.cut, self.joined

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same elements in another order."""
        return {_OUTPUT: torch.cat(given["input.0"].chunk(self.num, self.cut), self.joined)}

    def held(self, *_: object) -> Replay | None:
        """Nothing is to be held against anything: it was found by its bytes."""
        return None


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
        record = program.records[leaf]
        found, takers = _bytes(record), program.consumers.get(leaf, ())
        if found is None or leaf.key.slot.is_weight or not takers:
            continue
        first = min(takers, key=lambda node: node.call.order)
        known = [(v, n) for v, n in made.get(found, ()) if v.key.step == leaf.key.step]
        own = [v for v, n in known if v.rank == leaf.rank and n.call.order < first.call.order]
        others = [v for v, _ in known if across and v.rank != leaf.rank]
        source = next(iter([*own[-1:], *others]), None)
        if source is None and len(program.ranks) > 1:
            yield from _rechunked(archive, program, leaf, first)
        if source is not None and _tells(archive, record):
            copy = Copy(record.shape, _first_slot(first, leaf))
            yield Node(leaf.rank, first.call, {"input.0": source}, {_OUTPUT: leaf}, copy)


def _rechunked(archive: Archive, program: Program, leaf: ValueId, first: Node) -> Iterator[Node]:
    """How `leaf` was made of the last value of its rank that has its elements chunk by chunk."""
    record = program.records[leaf]
    for value, node in reversed(list(program.producers.items())):
        if value.rank != leaf.rank or node.call.order >= first.call.order:
            continue
        source = program.records[value]
        how = _chunks(source.shape, record.shape)
        if how is None or source.dtype != record.dtype or source.kept is not Kept.FULL:
            continue
        made = Rechunked(*how, _first_slot(first, leaf))
        try:
            one, other = (to_torch(archive.load(r)).reshape(r.shape) for r in (source, record))
        except DumpcmpError:
            return
        if is_telling(other) and torch.equal(made.run({"input.0": one})[_OUTPUT], other):
            yield Node(leaf.rank, first.call, {"input.0": value}, {_OUTPUT: leaf}, made)
            return


def _chunks(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, int, int] | None:
    """How many chunks along which dim are joined along which; None where shapes are no such."""
    unequal = [
        dim for dim, sizes in enumerate(zip(before, after, strict=False)) if len({*sizes}) > 1
    ]
    if len(before) != len(after) or len(unequal) != 2:
        return None
    for cut, joined in (unequal, unequal[::-1]):
        num = before[cut] // after[cut] if after[cut] else 0
        if num > 1 and after[cut] * num == before[cut] and after[joined] == num * before[joined]:
            return num, cut, joined
    return None


def _first_slot(node: Node, value: ValueId) -> str:
    """Where `node` takes `value`."""
    return next(slot for slot, each in node.takes.items() if each == value)


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
