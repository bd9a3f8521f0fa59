"""Rows of a table that ranks share: an index that another rank's part has gives zeros."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.layouts import parse_layout
from dumpcmp.nouns.op_names import OpSet
from dumpcmp.nouns.record import Call, Record
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.value import Kind, dtype_named, to_torch
from dumpcmp.replay.holding import hold
from dumpcmp.replay.rating import Rerun
from dumpcmp.shadows.own_operations import FoundByElements, OfOneCall
from dumpcmp.shadows.program import Node, Program

_OUTPUT = "output.0"
_LOOKUPS = OpSet("embedding")


@dataclass(frozen=True, slots=True)
class SharedLookup(OfOneCall):
    """A lookup in this rank's part of a table; what the others have is zero until they add up."""

    call: Call
    first: int  # index of the table's whole
    table: str  # the slot of the table, and that of the indices
    places: str

    @property
    def expression(self) -> Hashable:
        return "shared lookup", self.first, self.table

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows that this rank has."""
        own, places = self._own(given)
        return {_OUTPUT: torch.where(own, given[self.table][places], 0.0)}

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay:
        """Those rows must be the table's; DTensor leaves any row in the place of the others."""
        own, places = self._own(given)
        again = Rerun(
            {_OUTPUT: given[self.table][places]}, is_exact=True, unwritten={_OUTPUT: ~own}
        )
        return hold(again, _OUTPUT, got)

    def _own(self, given: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        places = given[self.places] - self.first
        own = (places >= 0) & (places < given[self.table].shape[0])
        return own[..., None], torch.where(own, places, 0)


@dataclass(frozen=True, slots=True)
class OwnRows(FoundByElements):
    """What a shared lookup hands on to be added up."""

    slot: str
    calls: tuple[Call, ...] = ()

    @property
    def expression(self) -> Hashable:
        return ("own rows",)

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same elements."""
        return {_OUTPUT: given["input.0"]}


def with_shared_tables(archive: Archive, program: Program) -> Program:
    """`program`, in which ranks look up in their parts of a table."""
    found = {node: own for node in program.nodes if (own := _lookup(program, node)) is not None}
    if not found:
        return program
    nodes = [replace(node, own=found[node]) if node in found else node for node in program.nodes]
    handed = [made for node in found for made in _handed_on(archive, program, node, found[node])]
    return replace(program, nodes=[*nodes, *handed])


def _lookup(program: Program, node: Node) -> SharedLookup | None:
    if node.call.op.function not in _LOOKUPS or node.own is not None:
        return None
    floats = [slot for slot, value in node.takes.items() if _is_float(program.records[value])]
    others = [slot for slot in node.takes if slot not in floats]
    if len(floats) != 1 or len(others) != 1:
        return None
    first = _first_row(program.records[node.takes[floats[0]]])
    return None if first is None else SharedLookup(node.call, first, floats[0], others[0])


def _is_float(record: Record) -> bool:
    return dtype_named(record.dtype).kind is Kind.FLOAT


def _first_row(record: Record) -> int | None:
    """The first row of the whole that this rank has, if its layout says that rows are shared."""
    layout = parse_layout(record.layout) if record.layout else None
    if layout is None or not layout.dims or len(layout.dims[0].axes) != 1:
        return None
    (axis,) = layout.dims[0].axes
    at = next((at for at in layout.coordinates if at.axis == axis), None)
    if at is None or not at.size or not layout.shape:
        return None
    return at.index * -(-layout.shape[0] // at.size)


def _handed_on(
    archive: Archive, program: Program, node: Node, lookup: SharedLookup
) -> Iterator[Node]:
    """A leaf of the rank that is what the lookup gave, with zeros in the place of others' rows."""
    value = node.gives[_OUTPUT]
    made = program.records[value]
    for leaf in program.leaves:
        record, takers = program.records[leaf], program.consumers.get(leaf, ())
        if leaf.rank != node.rank or record.shape != made.shape or not takers:
            continue
        if record.order < node.call.order:
            continue
        try:
            given = {
                slot: _load(archive, program.records[node.takes[slot]])
                for slot in (lookup.places, lookup.table)
            }
            if torch.equal(lookup.run(given)[_OUTPUT], _load(archive, record)):
                slot = next(slot for slot, each in takers[0].takes.items() if each == leaf)
                taker = takers[0].call
                yield Node(leaf.rank, taker, {"input.0": value}, {_OUTPUT: leaf}, OwnRows(slot))
                return
        except DumpcmpError:
            continue


def _load(archive: Archive, record: Record) -> Tensor:
    return to_torch(archive.load(record)).reshape(record.shape)
