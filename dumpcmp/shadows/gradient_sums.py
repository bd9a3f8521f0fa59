"""The backward pass of an eager run as a program: a gradient is the sum of its takers' products."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import ROOT
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Replay
from dumpcmp.replay.backward import GRADIENT, BackwardRerun, Slope
from dumpcmp.replay.chains import At, Chain
from dumpcmp.replay.holding import hold
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.rating import Rerun
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.shadows.plain_arguments import plain_arguments
from dumpcmp.shadows.program import Node, Program, StepEffect, ValueId

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

    @property
    def slot(self) -> str:
        """The gradient as a slot of the first call that hands it back."""
        return f"grad_{self.leaves[0][1]}"

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

    def rated(self, given: Mapping[str, Tensor]) -> Rerun:
        """The gradient, and how well it is determined."""
        found = self._again(given).rated()
        return replace(
            found,
            outputs={_OUTPUT: found.outputs[GRADIENT]},
            condition={_OUTPUT: found.condition.get(GRADIENT, 1.0)},
            noise={_OUTPUT: found.noise.get(GRADIENT, 0.0)},
            terms={_OUTPUT: found.terms[GRADIENT]} if GRADIENT in found.terms else {},
        )

    def level(self, given: Mapping[str, Tensor]) -> float:
        """The size of its terms, if nothing of them cancelled."""
        terms = self.rated(given).terms.get(_OUTPUT)
        return 0.0 if terms is None else float(terms.abs().mean())

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


LoadValue = Callable[[ValueId], Tensor]  # as it was recorded; raises DumpcmpError if it was not


def with_gradients(program: Program, load: LoadValue | None = None) -> Program:
    """`program` with a node for each gradient that follows from others, in order of execution.

    What the model returned may have been used outside of it as well: if `load` tells that its
    gradient is more than what calls of the program hand back, it is given from outside.
    """
    made = sorted(_gradient_nodes(program), key=lambda pair: -pair[0])
    if load is not None:
        returned = _returned_gradients(program)
        made = [(at, n) for at, n in made if not _has_more(n, returned, load)]
    if not made:
        return program
    effects = [*program.effects, *_gradient_effects(program)]
    nodes = [*program.nodes, *(node for _, node in made)]
    return replace(program, nodes=nodes, effects=effects)


def _returned_gradients(program: Program) -> set[ValueId]:
    """The gradients of what the model returned."""
    returned = {effect.value for effect in program.effects}
    return {
        gradient
        for node in program.nodes
        for slot, value in node.gives.items()
        if value in returned and (gradient := node.gradients.get(f"grad_{slot}")) is not None
    }


def _has_more(node: Node, returned: Collection[ValueId], load: LoadValue) -> bool:
    """Whether a gradient of what was returned is not what the calls behind it hand back."""
    (gradient,) = node.gives.values()
    if gradient not in returned or node.own is None:
        return False
    try:
        given = {slot: load(value) for slot, value in node.takes.items()}
        replay = node.own.held(given, load(gradient))
    except DumpcmpError:
        return True
    return replay is not None and (not replay.is_known or bool(wrong(replay)))


def _gradient_effects(program: Program) -> Iterator[StepEffect]:
    """What a backward pass leaves behind: the gradients of weights and of what the model took."""
    for value, gradient in program.gradients.items():
        key = value.key
        if key.slot.is_weight or (key.op == ROOT and key.slot.is_input):
            yield StepEffect(f"gradient of {key.op} {key.slot}", gradient)


def _gradient_nodes(program: Program) -> Iterator[tuple[int, Node]]:
    """A node for each gradient, and the first place in the program that it comes from.

    A gradient is known by the calls that handed it back, each of which adds a term. A call that
    hands back what it was given, at once or through other views of it, adds nothing.
    """
    takers: dict[ValueId, list[tuple[int, Node, str]]] = {}
    passed: dict[ValueId, set[ValueId]] = {}  # by gradient: those that it is, in another shape
    for place, node in reversed(list(enumerate(program.nodes))):
        given = [g for slot, g in node.gradients.items() if slot.startswith("grad_output")]
        through = set(given).union(*(passed.get(each, ()) for each in given))
        for slot, gradient in node.gradients.items():
            if slot.startswith("grad_input") and given and gradient not in through:
                takers.setdefault(gradient, []).append((place, node, slot.removeprefix("grad_")))
                if _only_moves(node):
                    passed.setdefault(gradient, set()).update(through)
    for gradient, found in takers.items():
        yield min(place for place, _, _ in found), _node(gradient, found[::-1])


def _node(gradient: ValueId, takers: Sequence[tuple[int, Node, str]]) -> Node:
    """The node that makes `gradient`; `takers` hand it back, each for one of its inputs."""
    nodes = list(dict.fromkeys(node for _, node, _ in takers))
    leaves = tuple((nodes.index(node), slot) for _, node, slot in takers)
    takes: dict[str, ValueId] = {}
    for number, node in enumerate(nodes):
        takes |= {f"{number} {slot}": value for slot, value in node.takes.items()}
        takes |= {
            f"{number} {slot}": value
            for slot, value in node.gradients.items()
            if slot.startswith("grad_output")
        }
        if _draws(node):  # which elements it dropped is read off what it gave
            takes |= {f"{number} {slot}": value for slot, value in node.gives.items()}
    summed = GradientSum(tuple(node.call for node in nodes), leaves)
    return Node(gradient.rank, nodes[0].call, takes, {_OUTPUT: gradient}, summed)


def _draws(node: Node) -> bool:
    return _kind(node) is FunctionKind.DRAWS


def _only_moves(node: Node) -> bool:
    return _kind(node) is FunctionKind.MOVES


def _kind(node: Node) -> FunctionKind | None:
    try:
        return function_named(node.call.target).kind
    except Unreplayable:
        return None
