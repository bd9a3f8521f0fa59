"""What calls write into arguments besides their first: the moments that batch norms keep.

Such a call gives out nothing of what it wrote; the next call that takes the moments, or the state
after the step, has it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dumpcmp.nouns.arithmetic import moments_written
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Replay
from dumpcmp.replay.arguments import read_arguments
from dumpcmp.replay.holding import hold
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.rating import Rerun, error_of, ratio_of
from dumpcmp.replay.running import fitted
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.shadows.plain_arguments import plain_arguments
from dumpcmp.shadows.program import Node, Program, ValueId
from dumpcmp.shadows.quantities import tensor_of

_OUTPUT = "output.0"


@dataclass(frozen=True, slots=True)
class WrittenArgument:
    """An argument of a call as the call leaves it."""

    call: Call
    argument: str  # its slot

    @property
    def calls(self) -> tuple[Call, ...]:
        """The one that writes it."""
        return (self.call,)

    @property
    def expression(self) -> Hashable:
        return "written", self.call.target, plain_arguments(self.call.arguments), self.argument

    @property
    def slot(self) -> str:
        """Where a reader finds the call."""
        return _OUTPUT

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The argument after the call, in float64."""
        return {_OUTPUT: self._after({slot: tensor_of(each) for slot, each in given.items()})}

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay:
        """What was recorded of it, against that."""
        return hold(self.rated(given), _OUTPUT, got)

    def rated(self, given: Mapping[str, Tensor]) -> Rerun:
        """The same, and how well it is determined."""
        wide = self.run(given)[_OUTPUT]
        sizes = {slot: each.abs() if each.is_floating_point() else each
                 for slot, each in given.items()}  # fmt: skip
        terms = self.run(sizes)[_OUTPUT]
        noise = error_of(self._after(given), wide)
        condition = {_OUTPUT: ratio_of(terms, wide)}
        return Rerun({_OUTPUT: wide}, condition, {_OUTPUT: noise}, terms={_OUTPUT: terms})

    def level(self, given: Mapping[str, Tensor]) -> float:
        """The size of its terms, if nothing of them cancelled."""
        return float(self.rated(given).terms[_OUTPUT].abs().mean())

    def _after(self, given: Mapping[str, Tensor]) -> Tensor:
        copies = {slot: each.clone() for slot, each in given.items()}
        arguments = fitted(read_arguments(self.call.arguments, copies), copies)
        function = function_named(self.call.target)
        try:
            with torch.no_grad():
                function.run(*arguments.args, **arguments.kwargs)
        except Exception as error:
            raise Unreplayable(f"it cannot be run in float64: {error}") from None
        return copies[self.argument]


def with_written_moments(program: Program) -> Program:
    """`program` with a node for each argument that a call has written and that was seen again."""
    made = dict(_made(program))
    if not made:
        return program
    nodes = [each for node in program.nodes for each in (node, *made.get(node, ()))]
    return replace(program, nodes=nodes)


def _made(program: Program) -> Iterator[tuple[Node, list[Node]]]:
    known: dict[tuple[int, str, str], tuple[Node, str, ValueId]] = {}
    found: dict[Node, list[Node]] = {}
    names: dict[ValueId, str] = {}
    for node in program.nodes:
        for slot in moments_written(node.call):
            before = node.takes.get(slot)
            if before is None:
                continue
            place = node.rank, node.call.op.module, slot
            if place in known:
                writer, at, taken = known[place]
                if before != taken and before not in program.producers:
                    found.setdefault(writer, []).append(_node(writer, at, before))
                names[before] = names.get(taken, "")
            else:
                names[before] = _buffer_name(before)
            known[place] = node, slot, before
    named = (effect for effect in program.effects if effect.is_state and effect.name)
    effects = {effect.name: effect.value for effect in named}
    for writer, slot, taken in known.values():
        after = effects.get(names.get(taken, ""))  # a buffer, by its name
        if after is not None and after != taken and after not in program.producers:
            found.setdefault(writer, []).append(_node(writer, slot, after))
    yield from found.items()


def _node(writer: Node, slot: str, after: ValueId) -> Node:
    own = WrittenArgument(writer.call, slot)
    return Node(writer.rank, writer.call, writer.takes, {_OUTPUT: after}, own)


def _buffer_name(value: ValueId) -> str:
    """What the state after a step calls a buffer."""
    key = value.key
    if key.slot.kind != "buffer":
        return ""
    module = "" if key.op == "<root>" else f"{key.op}."
    return f"buffer.{module}{key.slot.name}"
