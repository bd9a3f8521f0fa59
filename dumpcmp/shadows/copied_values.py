"""Closes programs where code that was not recorded copied a value: what has its bytes is it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

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
        own = [v for v, n in made.get(found, ())
               if v.rank == leaf.rank and n.call.order < first.call.order]  # fmt: skip
        others = [v for v, _ in made.get(found, ()) if across and v.rank != leaf.rank]
        source = next(iter([*own[-1:], *others]), None)
        if source is not None and _tells(archive, record):
            copy = Copy(record.shape, _first_slot(first, leaf))
            yield Node(leaf.rank, first.call, {"input.0": source}, {_OUTPUT: leaf}, copy)


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
