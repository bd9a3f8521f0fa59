"""What a DTensor op adds on each rank to a term of a sum: a share of what all ranks have alike."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from dumpcmp.nouns.layouts import Mode, parse_layout
from dumpcmp.nouns.op_names import OpTable
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Replay
from dumpcmp.replay.holding import hold
from dumpcmp.replay.running import rerun
from dumpcmp.shadows.own_operations import OfOneCall
from dumpcmp.shadows.plain_arguments import plain_arguments
from dumpcmp.shadows.program import Node, Program, ValueId

_OUTPUT = "output.0"
_ADDED = OpTable(  # slots of what functions add to a product, or to each other
    {
        "linear": ("input.2",),
        "addmm": ("input.0",),
        "baddbmm": ("input.0",),
        "add": ("input.0", "input.1"),
        "sub": ("input.0", "input.1"),
    }
)


@dataclass(frozen=True, slots=True)
class SharedTerm(OfOneCall):
    """A call whose output is a term of a sum over ranks: each adds its share of some inputs."""

    call: Call
    shares: Mapping[str, int]  # how many ranks share an input, by slot

    @property
    def expression(self) -> Hashable:
        asked = self.call.target, plain_arguments(self.call.arguments)
        return "shared term", asked, tuple(sorted(self.shares.items()))

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The term in float64."""
        return rerun(self.call, self._shared(given), is_rated=False).outputs

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay:
        """What the recorded term differs in from that."""
        return hold(rerun(self.call, self._shared(given)), _OUTPUT, got)

    def _shared(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {slot: each / self.shares.get(slot, 1) for slot, each in given.items()}


def with_shared_terms(program: Program) -> Program:
    """`program`, in which DTensor ops add their rank's share of what is replicated.

    An op whose recorded placement is a term of a sum takes a replicated input as one that is
    divided by the number of the ranks that add up.
    """
    return replace(program, nodes=[_shared(program, node) for node in program.nodes])


def _shared(program: Program, node: Node) -> Node:
    slots = _ADDED.get(node.call.op.function, ())
    value = node.gives.get(_OUTPUT)
    if not slots or value is None or node.own is not None:
        return node
    partial = dict(_axes(program, value, Mode.PARTIAL))
    shares = {}
    for slot in slots:
        if partial and slot in node.takes and program.records[node.takes[slot]].layout:
            held = {axis for axis, _ in _axes(program, node.takes[slot], None)}
            number = 1
            for axis, size in partial.items():
                number *= 1 if axis in held else size
            shares[slot] = number
    if all(number == 1 for number in shares.values()):
        return node
    return replace(node, own=SharedTerm(node.call, shares))


def _axes(program: Program, value: ValueId, mode: Mode | None) -> Iterator[tuple[str, int]]:
    """The axes over which a value is sharded or lies in terms, by its layout, and their sizes."""
    text = program.records[value].layout
    layout = parse_layout(text) if text else None
    if layout is None:
        return
    sizes = {at.axis: at.size for at in layout.coordinates}
    for placement in layout.over:
        if (placement.mode is mode or mode is None) and placement.mode is not Mode.REPLICATED:
            yield placement.axis, sizes.get(placement.axis) or 1
