"""Views of DTensors, which state the sizes of wholes: on each rank they give its own sizes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from dumpcmp.nouns.op_names import OpSet
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Replay
from dumpcmp.replay.holding import hold
from dumpcmp.replay.rating import Rerun
from dumpcmp.shadows.own_operations import OfOneCall
from dumpcmp.shadows.program import Node, Program

_INPUT, _OUTPUT = "input.0", "output.0"
_VIEWS = OpSet("view _unsafe_view reshape unflatten flatten")
_EXPANDING = OpSet("expand")


@dataclass(frozen=True, slots=True)
class LocalShape(OfOneCall):
    """What a rank has, in the shape that its own result has."""

    call: Call
    shape: tuple[int, ...]
    is_expanded: bool

    @property
    def expression(self) -> Hashable:
        return "local shape", self.shape, self.is_expanded

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same elements."""
        first = given[_INPUT]
        return {
            _OUTPUT: first.expand(self.shape) if self.is_expanded else first.reshape(self.shape)
        }

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay:
        """What was recorded, against that, bit for bit."""
        return hold(Rerun(self.run(given), is_exact=True), _OUTPUT, got)


def with_local_shapes(program: Program) -> Program:
    """`program`, in which views of DTensors give each rank's own shapes."""
    return replace(program, nodes=[_local(program, node) for node in program.nodes])


def _local(program: Program, node: Node) -> Node:
    first, made = node.takes.get(_INPUT), node.gives.get(_OUTPUT)
    if first is None or made is None or node.own is not None:
        return node
    records = program.records[first], program.records[made]
    if not any(record.layout for record in records):
        return node
    function = node.call.op.function
    is_view = function in _VIEWS and math.prod(records[0].shape) == math.prod(records[1].shape)
    if not is_view and function not in _EXPANDING:
        return node
    return replace(node, own=LocalShape(node.call, records[1].shape, function in _EXPANDING))
