"""The backward pass of an eager run as a program: a gradient is the sum of its takers' products."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Replay
from dumpcmp.replay.backward import GRADIENT, BackwardRerun, Slope
from dumpcmp.replay.chains import At, Chain
from dumpcmp.replay.holding import hold
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.shadows.arguments import plain_arguments
from dumpcmp.shadows.program import Effect, Node, Program, ValueId

_OUTPUT = "output.0"


@dataclass(frozen=True, slots=True)
class GradientSum:
    """What the gradient of one value is: over calls that take it, what they hand back for it.

    Inputs of the node are named by the number of the call and a slot of it: ``0 input.1``.
    """

    calls: tuple[Call, ...]
    leaves: tuple[At, ...]  # where the value is taken

    @property
    def expression(self) -> Hashable:
        """The functions and their arguments, and where the value is taken."""
        asked = tuple((call.target, plain_arguments(call.arguments)) for call in self.calls)
        return "gradient", asked, self.leaves

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradient in float64."""
        return {_OUTPUT: self._again(given).gradient}

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay:
        """What a recorded gradient differs in from what its takers' ops give on these inputs."""
        again = self._again(given)
        replay = hold(again.plain(is_summed=len(self.leaves) > 1), GRADIENT, got)
        for is_moved in (False, True):
            if replay.is_known and wrong(replay):
                replay = hold(again.rated(is_moved=is_moved), GRADIENT, got)
        return replay

    def _again(self, given: Mapping[str, Tensor]) -> BackwardRerun:
        values: dict[At, Tensor] = {}
        grads: dict[At, Tensor] = {}
        for name, tensor in given.items():
            number, _, slot = name.partition(" ")
            if slot.startswith("grad_"):
                grads[int(number), slot.removeprefix("grad_")] = tensor
            else:
                values[int(number), slot] = tensor
        return BackwardRerun(Slope(Chain(self.calls), values, self.leaves, grads))


def with_gradients(program: Program) -> Program:
    """`program` with a node for each gradient that follows from others, in order of execution."""
    if not program.gradients:
        return program
    backward = _Backward(program, program.gradients)
    places = {value: at for at, node in enumerate(program.nodes) for value in node.gives.values()}
    made = sorted(backward.nodes(), key=lambda pair: -places.get(pair[0], -1))
    effects = [*program.effects, *_parameter_effects(program)]
    nodes = [*program.nodes, *(node for _, node in made)]
    return Program(program.model, program.step, nodes, program.records, effects, program.gradients)


def _parameter_effects(program: Program) -> Iterator[Effect]:
    """What a backward pass leaves behind: the gradients of weights and of what the model took."""
    for value, gradient in program.gradients.items():
        if value.key.op.is_module and value.key.slot.is_input:
            yield Effect(f"gradient of {value.key.op} {value.key.slot}", gradient)


@dataclass(eq=False)
class _Backward:
    """The gradients of a step."""

    program: Program
    of_value: Mapping[ValueId, ValueId]  # the gradient of each value that has one

    def nodes(self) -> Iterator[tuple[ValueId, Node]]:
        returned = {effect.value for effect in self.program.effects}
        for value, gradient in self.of_value.items():
            takers = self._takers(value)
            if not takers or value in returned:
                continue
            node = self._node(value, gradient, takers)
            if gradient not in node.takes.values():  # one gradient that is handed through
                yield value, node

    def _takers(self, value: ValueId) -> list[Node]:
        """The calls that take `value` and were given gradients for what they gave."""
        return [
            node
            for node in dict.fromkeys(self.program.consumers.get(value, ()))
            if any(each in self.of_value for each in node.gives.values())
        ]

    def _node(self, value: ValueId, gradient: ValueId, takers: Sequence[Node]) -> Node:
        takes: dict[str, ValueId] = {}
        leaves: list[At] = []
        for number, node in enumerate(takers):
            takes |= {f"{number} {slot}": each for slot, each in node.takes.items()}
            leaves += [(number, slot) for slot, each in node.takes.items() if each == value]
            takes |= {
                f"{number} grad_{slot}": self.of_value[each]
                for slot, each in node.gives.items()
                if each in self.of_value
            }
            if _draws(node):  # which elements it dropped is read off what it gave
                takes |= {f"{number} {slot}": each for slot, each in node.gives.items()}
        summed = GradientSum(tuple(node.call for node in takers), tuple(leaves))
        return Node(value.rank, takers[0].call, takes, {_OUTPUT: gradient}, summed)


def _draws(node: Node) -> bool:
    try:
        return function_named(node.call.target).kind is FunctionKind.DRAWS
    except Unreplayable:
        return False
