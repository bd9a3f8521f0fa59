"""Writes through views: what was written to a part of a tensor is another value of the whole.

A recorded value has no link to a write that went through a view of it. Here the link is found: the
geometries of views tell which elements of the memory each has, and the bytes tell whether the
elements that were read later are those that were there before and those that were written.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.given import argument_tree, is_whole
from dumpcmp.nouns.op_names import OpSet
from dumpcmp.nouns.record import UNWRITTEN, Call, Kept, Record
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.value import to_torch
from dumpcmp.replay.listed import ReplayFunction, function_named
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.shadows.program import Node, Program, ValueId

WHOLE = "whole"  # the slot of what was there before; "written.0" and on, of what was written
_OUT = re.compile(r"input\.out(?:\.(\d+))?")
_MOST_WRITES = 4096  # to one tensor, in one step
_MOST_ORPHANS = 64  # writes to blank memory that are looked at, the last ones

# Functions of Python that give a view, besides those of which the dispatcher's schemas say so.
_VIEWS = OpSet("""
    H T chunk contiguous cpu data double expand_as flatten float mH mT ravel reshape
    reshape_as split tensor_split to type_as unbind view_as
    """)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Which elements of a memory a tensor has."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, record: Record) -> Geometry:
        return cls(record.shape, record.stride, record.storage_offset)

    @property
    def end(self) -> int:
        """The first element behind it."""
        steps = zip(self.shape, self.stride, strict=True)
        if 0 in self.shape:
            return self.offset
        return self.offset + 1 + sum((size - 1) * step for size, step in steps)

    def view(self, memory: Tensor) -> Tensor:
        return memory.as_strided(self.shape, self.stride, self.offset)


@dataclass(frozen=True, slots=True)
class RewrittenMemory:
    """How a value follows from what its memory held before and what was written to it since."""

    own: Geometry
    whole: Geometry
    written: tuple[Geometry, ...]

    @property
    def expression(self) -> Hashable:
        """The geometries."""
        return self

    @property
    def slot(self) -> str:
        """What a write leaves."""
        return "output.0"

    @property
    def calls(self) -> tuple[Call, ...]:
        """None that round."""
        return ()

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay | None:
        """Nothing is left to check: it was found by the bytes that it explains."""
        del given, got
        return None

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The value; Unreplayable where it has elements that nobody knows."""
        memory, known = self._memory(given)
        if WHOLE not in given:  # nobody has written to the rest, so that nothing depends on it
            self.whole.view(known).fill_(True)
        if not bool(self.own.view(known).all()):
            raise Unreplayable("a part of it was never recorded")
        return {"output.0": self.own.view(memory).clone()}

    def is_whole(self, given: Mapping[str, Tensor]) -> bool:
        """Whether what was written is all of it."""
        return bool(self.own.view(self._memory(given)[1]).all())

    def explains(self, given: Mapping[str, Tensor], seen: Tensor) -> bool:
        """Whether it gives the elements that were `seen`, wherever it gives any."""
        memory, known = self._memory(given)
        made, is_known = self.own.view(memory), self.own.view(known)
        if made.shape != seen.shape or not bool(is_known.any()):
            return False
        is_same = (made == seen) | ((made != made) & (seen != seen))
        return bool((is_same | ~is_known).all())

    def _memory(self, given: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        room = max(each.end for each in (self.own, self.whole, *self.written))
        first = next(iter(given.values()))
        memory = torch.zeros(room, dtype=first.dtype)
        known = torch.zeros(room, dtype=torch.bool)
        places = {f"written.{at}": each for at, each in enumerate(self.written)}
        for slot, geometry in {WHOLE: self.whole, **places}.items():
            if slot in given:
                geometry.view(memory).copy_(given[slot])
                geometry.view(known).fill_(True)
        return memory, known


@dataclass(eq=False)
class _Memory:
    """One memory: the tensor that it was first seen as, and what was written to it."""

    first: ValueId
    members: list[ValueId] = field(default_factory=list)
    writes: list[tuple[Node, ValueId]] = field(default_factory=list)


def with_writes(archive: Archive, program: Program) -> Program:
    """`program` with a node for each value that only a write through a view explains."""
    closing = _Closing(archive, program)
    nodes = list(closing.nodes())
    if len(nodes) == len(program.nodes):
        return program
    return replace(program, nodes=nodes)


def written_values(program: Program) -> set[ValueId]:
    """The values of all memories that a call has written to, before or after it did."""
    memories: dict[ValueId, set[ValueId]] = {}
    written: set[ValueId] = set()
    for node in program.nodes:
        first, is_write = node.takes.get("input.0"), isinstance(node.own, RewrittenMemory)
        joined = [*node.takes.values(), *node.gives.values()] if is_write else []
        if node.own is None and first is not None:
            try:
                function = function_named(node.call.target)
            except Unreplayable:
                continue
            is_write = function.changes_first
            if is_write or _is_view(node, function):
                joined = [first, *node.gives.values()]
        if joined:
            memory = set(joined).union(*(memories.get(each, ()) for each in joined))
            memories |= dict.fromkeys(memory, memory)
            written |= {joined[0]} if is_write else set()
    return set().union(*(memories[each] for each in written))


def written_outside(program: Program) -> set[ValueId]:
    """What calls left in memory that none of them made: an input, a cache, a buffer."""
    found: set[ValueId] = set()
    bases: dict[ValueId, ValueId] = {}
    for node in program.nodes:
        try:
            function = function_named(node.call.target)
        except Unreplayable:
            continue
        out = _out_of(node)
        is_write = function.changes_first or bool(out)
        for slot, value in node.gives.items() if is_write or _is_view(node, function) else ():
            base = out.get(slot, None if out else node.takes.get("input.0"))
            if base is not None:
                bases[value] = bases.get(base, base)
                found |= {value} if is_write and bases[value] not in program.producers else set()
    return found


@dataclass(eq=False)
class _Closing:
    """Follows memories through a program."""

    archive: Archive
    program: Program
    _memories: dict[ValueId, _Memory] = field(default_factory=dict)
    _written: list[_Memory] = field(default_factory=list)
    _orphans: list[tuple[Node, ValueId]] = field(default_factory=list)  # writes to blank memory
    _tried: set[ValueId] = field(default_factory=set)

    def nodes(self) -> Iterator[Node]:
        for node in self.program.nodes:
            yield from filter(None, map(self._explained, node.takes.values()))
            self._note(node)
            yield node
        shown = [effect.value for effect in self.program.effects]
        yield from filter(None, map(self._explained, shown))

    def _note(self, node: Node) -> None:
        try:
            function = function_named(node.call.target)
        except Unreplayable:
            return
        out = _out_of(node)
        writes = function.changes_first or bool(out)
        if not (writes or _is_view(node, function)):
            return
        for slot, value in node.gives.items():
            base = out.get(slot, None if out else node.takes.get("input.0"))
            if base is not None:
                self._lies_in(base, value, node if writes else None)

    def _lies_in(self, base: ValueId, value: ValueId, writer: Node | None) -> None:
        """`value` is memory of `base`, which `writer` has written to."""
        memory = self._memories.setdefault(base, _Memory(base, [base]))
        self._memories[value] = memory
        memory.members.append(value)
        if writer is None or len(memory.writes) >= _MOST_WRITES:
            return
        if self.program.records[memory.first].problem == UNWRITTEN:
            self._orphans = [*self._orphans[1 - _MOST_ORPHANS :], (writer, value)]
        memory.writes.append((writer, value))
        if memory not in self._written:
            self._written.append(memory)

    def _explained(self, value: ValueId) -> Node | None:
        """A node that makes `value` of a memory that was written to, where one does."""
        if value in self.program.producers or value in self._tried or value in self._memories:
            return None
        self._tried.add(value)
        record = self.program.records[value]
        is_given = value.key.op.is_module and value.key.slot.is_input
        if record.kept is not Kept.FULL or is_given:
            return None
        for memory in reversed(self._written):
            if memory.first.rank == value.rank and self._has_geometry(memory, record):
                node = self._node(memory, value, record)
                if node is not None:
                    self._memories[value] = memory
                    memory.members.append(value)
                    return node
        return self._filled(value, record)

    def _filled(self, value: ValueId, record: Record) -> Node | None:
        """The node of a memory that was blank, which several writes have filled between them."""
        own = Geometry.of(record)
        if not self._orphans or len(own.shape) != len(own.stride):
            return None
        try:
            seen = self._loaded(value)
        except DumpcmpError:
            return None
        within = [
            (node, each)
            for node, each in self._orphans
            if each.rank == value.rank and self._is_within(own, seen, each)
        ]
        if not within:
            return None
        takes = {f"written.{at}": each for at, (_, each) in enumerate(within)}
        places = tuple(Geometry.of(self.program.records[each]) for _, each in within)
        rewritten = RewrittenMemory(own, own, places)
        given = {slot: self._loaded(each) for slot, each in takes.items()}
        if not rewritten.is_whole(given) or not rewritten.explains(given, seen):
            return None
        return Node(value.rank, within[-1][0].call, takes, {"output.0": value}, rewritten)

    def _is_within(self, own: Geometry, seen: Tensor, written: ValueId) -> bool:
        """Whether what was written lies in a tensor, with the very elements that it has there."""
        record = self.program.records[written]
        place = Geometry.of(record)
        if getattr(torch, record.dtype) is not seen.dtype or place.end > own.end:
            return False
        memory, known = (
            torch.zeros(own.end, dtype=seen.dtype),
            torch.zeros(own.end, dtype=torch.bool),
        )
        own.view(memory).copy_(seen)
        own.view(known).fill_(True)
        return bool(place.view(known).all()) and torch.equal(
            place.view(memory), self._loaded(written)
        )

    def _has_geometry(self, memory: _Memory, record: Record) -> bool:
        """Whether a tensor of this memory lies as `record` does."""
        records = (self.program.records[member] for member in memory.members)
        return any(
            (each.shape, each.stride, each.storage_offset, each.dtype)
            == (record.shape, record.stride, record.storage_offset, record.dtype)
            for each in records
        )

    def _node(self, memory: _Memory, value: ValueId, record: Record) -> Node | None:
        takes = {WHOLE: memory.first}
        takes |= {f"written.{at}": each for at, (_, each) in enumerate(memory.writes)}
        geometries = {slot: Geometry.of(self.program.records[each]) for slot, each in takes.items()}
        if any(len(each.shape) != len(each.stride) for each in geometries.values()):
            return None
        whole = geometries.pop(WHOLE)
        rewritten = RewrittenMemory(Geometry.of(record), whole, tuple(geometries.values()))
        if self.program.records[memory.first].problem == UNWRITTEN:
            del takes[WHOLE]
        try:
            given = {slot: self._loaded(each) for slot, each in takes.items()}
            seen = self._loaded(value)
        except DumpcmpError:
            return None
        if not rewritten.explains(given, seen):
            return None
        node, _ = memory.writes[-1]
        return Node(value.rank, node.call, takes, {"output.0": value}, rewritten)

    def _loaded(self, value: ValueId) -> Tensor:
        record = self.program.records[value]
        if record.kept is not Kept.FULL:
            raise Unreplayable(record.problem or "only a summary of it was kept")
        return to_torch(self.archive.load(record)).reshape(record.shape)


def _out_of(node: Node) -> dict[str, ValueId]:
    """The memory that a call was told to write to (``out=``), by the slot of what it gives."""
    found = ((_OUT.fullmatch(slot), value) for slot, value in node.takes.items())
    return {f"output.{match[1] or 0}": value for match, value in found if match}


def _is_view(node: Node, function: ReplayFunction) -> bool:
    if function.name == "getitem":
        return all(map(_is_plain_index, argument_tree(node.call).get("args", [])[1:]))
    return function.name in _VIEWS or _gives_alias(function.name)


def _is_plain_index(index: Any) -> bool:
    """Whether an index, as its JSON tells of it, picks no elements by a list or a tensor."""
    if isinstance(index, dict) and "tuple" in index:
        return all(map(_is_plain_index, index["tuple"]))
    if isinstance(index, dict):
        return "slice" in index or "ellipsis" in index
    return index is None or is_whole(index)


@cache
def _gives_alias(name: str) -> bool:
    """Whether the dispatcher's op of this name gives memory of its first argument."""
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        given = schema.returns[0].alias_info if schema.returns else None
        if given is not None and not given.is_write:
            return True
    return False
