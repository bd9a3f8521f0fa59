"""The backward pass of an eager run as a program: a gradient is the sum of its takers' products."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dumpcmp.align.renaming import unwrapped
from dumpcmp.judge.replaying import wrong
from dumpcmp.judge.tolerances import ALIKE
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
from dumpcmp.shadows.region_gradients import Regions
from dumpcmp.shadows.rewritten_memory import written_values

_OUTPUT = "output.0"
_MOST_VALUES = 4  # that have one gradient


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
        gradient = self._again(given).gradient
        number, slot = self.leaves[0]
        if gradient.shape != given[f"{number} {slot}"].shape:
            raise Unreplayable("its replay gives another shape than it had")
        return {_OUTPUT: gradient}

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay:
        """What a recorded gradient differs in from what its takers' ops give on these inputs."""
        again = self._again(given)
        replay = hold(again.plain(is_summed=len(self.leaves) > 1), GRADIENT, got)
        for is_moved in (False, True):
            if replay.is_known and wrong(replay):
                replay = hold(again.rated(is_moved=is_moved), GRADIENT, got)
        if replay.is_known and wrong(replay):
            replay = replay._replace(blamed=self._blamed(again, got))
        return replay

    def _blamed(self, again: BackwardRerun, got: Tensor) -> tuple[str, ...]:
        """The calls whose parts of the gradient may be wrong, the likeliest first.

        It is one alone where the error resembles its part, and no other's as much.
        """
        error = got.to(again.gradient) - again.gradient
        error = torch.where(torch.isfinite(error), error, 0.0)
        whole = float(error.norm())
        likeness: dict[str, float] = {}
        for (number, _), part in again.parts.items():
            site, norm = str(self.calls[number].site), whole * float(part.norm())
            alike = float((part.conj() * error).sum().abs()) / norm if norm else 0.0
            likeness[site] = max(likeness.get(site, 0.0), alike)
        ranked = sorted(likeness, key=lambda site: -likeness[site])
        is_plain = len(ranked) == 1 or likeness[ranked[0]] > max(ALIKE, 2 * likeness[ranked[1]])
        return tuple(ranked[:1] if is_plain else ranked)

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
        for name, each in given.items():
            number, _, slot = name.partition(" ")
            tensor = torch.zeros(each.shape, dtype=each.dtype) if each.is_meta else each
            if slot.startswith("grad_"):
                grads[int(number), slot.removeprefix("grad_")] = tensor
            else:
                values[int(number), slot] = tensor
        lost = [
            f"{self.calls[at].site} {slot}" for at, slot in self.leaves if (at, slot) not in values
        ]
        if lost:
            raise Unreplayable(f"{lost[0]} is not recorded")
        return BackwardRerun(Slope(Chain(self.calls), values, self.leaves, grads))


LoadRecorded = Callable[[ValueId], Tensor]  # as it was recorded; raises DumpcmpError if it was not


def with_gradients(program: Program, load: LoadRecorded | None = None) -> Program:
    """`program` with a node for each gradient that follows from others, in order of execution.

    What the model returned may have been used outside of it as well: if `load` tells that its
    gradient is more than what calls of the program hand back, it is given from outside. Of memory
    that was written to, autograd may not hand back what the calls alone tell.
    """
    made = sorted(_gradient_nodes(program), key=lambda pair: -pair[0])
    if load is not None:
        made = _Knowing(program, load).made(made)
    shown = list(gradient_effects(program))
    if not made and not shown:
        return program
    nodes = list(_in_place(program, {g: node for _, node in made for g in node.gives.values()}))
    return replace(program, nodes=nodes, effects=[*program.effects, *shown])


def gradient_nodes(program: Program) -> list[Node]:
    """How each gradient follows from others on its own rank, as far as its calls tell.

    What ranks add up besides is not in it, and what other steps may have added to is open.
    """
    return [_opened(node, program) for _, node in _gradient_nodes(program)]


def _opened(node: Node, program: Program) -> Node:
    if node.own is None or program.joint.isdisjoint(node.gives.values()):
        return node
    return replace(node, own=OpenGradient(node.own.slot, _JOINT))


def _in_place(program: Program, made: Mapping[ValueId, Node]) -> Iterator[Node]:
    """The nodes of `program` and those that were `made`: for what calls gave, in their places."""
    for node in program.nodes:
        instead = [value for value in node.gives.values() if value in made]
        kept = {slot: value for slot, value in node.gives.items() if value not in made}
        yield replace(node, gives=kept) if instead else node
        yield from (made[value] for value in instead)
    yield from (node for value, node in made.items() if value not in program.producers)


@dataclass(frozen=True, slots=True)
class OpenGradient:
    """A gradient of which it is not known how it follows from others: it stands as recorded."""

    slot: str
    reason: str
    calls: tuple[Call, ...] = ()

    @property
    def expression(self) -> Hashable:
        """Itself: no two of them are known to be the same."""
        return id(self)

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Nobody knows what it is made of."""
        del given
        raise Unreplayable(self.reason)

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay:
        """So nobody knows whether it is right."""
        del given, got
        return Replay(unknown=self.reason)


_JOINT = "calls of the model in another step may have added to this gradient"
_UNMADE = "no call is known to have handed this gradient back"


@dataclass(eq=False)
class _Knowing:
    """Holds gradients against what calls hand back, where others may have a share in them."""

    program: Program
    load: LoadRecorded
    _returned: set[ValueId] = field(init=False)
    _open: set[ValueId] = field(init=False)

    def __post_init__(self) -> None:
        effects = {effect.value for effect in self.program.effects}
        self._returned = set(self._gradients_of(effects))
        written = set(self._gradients_of(written_values(self.program)))
        leaking = set(self._gradients_of(set(self._given_to_functions())))
        self._open = self._returned | written | leaking | self.program.joint

    def _given_to_functions(self) -> Iterator[ValueId]:
        """What functions with a backward pass of their own took, which nobody recorded as one call.

        Calls inside of such a function are given no gradients, though what it gave has one.
        """
        with_gradients = {value for value, _ in self._gradients}
        silent = {
            node
            for node in self.program.nodes
            if not any(slot.startswith("grad_output") for slot in node.gradients)
        }
        waiting = [value for value in with_gradients if self._producer(value) in silent]
        seen: set[ValueId] = set()
        while waiting:
            node = self._producer(waiting.pop())
            for value in node.takes.values() if node in silent and node is not None else ():
                if value not in seen:
                    seen.add(value)
                    waiting.append(value)
        yield from seen

    def _producer(self, value: ValueId) -> Node | None:
        return self.program.producers.get(value)

    def _gradients_of(self, values: Collection[ValueId]) -> Iterator[ValueId]:
        for value, gradient in self._gradients:
            if value in values:
                yield gradient

    @property
    def _gradients(self) -> Iterator[tuple[ValueId, ValueId]]:
        """Values, and their gradients."""
        for node in self.program.nodes:
            for slot, value in (*node.gives.items(), *node.takes.items()):
                gradient = node.gradients.get(f"grad_{slot}")
                if gradient is not None:
                    yield value, gradient
        yield from self.program.gradients.items()

    def made(self, nodes: Sequence[tuple[int, Node]]) -> list[tuple[int, Node]]:
        """The nodes of gradients as far as they are known; those from outside have none."""
        found, left = list[tuple[int, Node]](), dict[ValueId, str]()
        for place, node in nodes:
            (gradient,) = node.gives.values()
            is_open = gradient in self._open
            if not is_open or hands_back(node, gradient, self.load):
                found.append((place, node))
            elif gradient not in self._returned and gradient not in self.program.producers:
                assert node.own is not None
                left[gradient] = node.own.slot
        known = {gradient for _, node in found for gradient in node.gives.values()}
        for node in self.program.nodes:
            for slot, gradient in node.gradients.items():
                is_known = gradient in known or gradient in self.program.producers
                if not is_known and gradient not in self._returned:
                    left.setdefault(gradient, slot)
        found += self._by_regions(left, known | self._returned)
        return sorted(found, key=lambda pair: -pair[0])

    def _by_regions(
        self, left: Mapping[ValueId, str], known: set[ValueId]
    ) -> Iterator[tuple[int, Node]]:
        """Of gradients that are `left`, what all that was made of their values tells."""
        values: dict[ValueId, list[ValueId]] = {}
        for value, gradient in self._gradients:
            if value in self.program.records:
                values.setdefault(gradient, []).append(value)
        regions = Regions(self.program, dict(self._gradients))
        orders = {value: self.program.records[value].order for some in values.values()
                  for value in some}  # fmt: skip
        last = len(self.program.nodes)
        latest = {g: max((orders[value] for value in values.get(g, ())), default=-1) for g in left}
        for gradient in sorted(left, key=lambda gradient: -latest[gradient]):
            # What only passes a gradient on has the same as what it took: the last one is asked.
            known_by = dict.fromkeys(values.get(gradient, ()))  # none where no value was recorded
            some = sorted(known_by, key=lambda value: -orders[value])
            asked = [regions.node(v, known, left[gradient]) for v in some[:_MOST_VALUES]]
            right = (made for made in asked if made and hands_back(made[1], gradient, self.load))
            if (made := next(right, None)) is not None:
                known.add(gradient)
                yield made
                continue
            node = next(n for n in self.program.nodes if gradient in n.gradients.values())
            own = OpenGradient(left[gradient], _UNMADE)
            behind = next((made[1].takes for made in asked if made), {})
            takes = {slot: value for slot, value in behind.items() if slot.startswith("grad")}
            yield last, Node(gradient.rank, node.call, takes, {_OUTPUT: gradient}, own)


def hands_back(node: Node, gradient: ValueId, load: LoadRecorded) -> bool:
    """Whether what was recorded of a gradient is what `node` makes of recorded values.

    What is supposed of its making may not even fit the shapes.
    """
    assert node.own is not None
    try:
        given = {slot: load(value) for slot, value in node.takes.items()}
        replay = node.own.held(given, load(gradient))
    except (DumpcmpError, RuntimeError):
        return False
    return replay is None or (replay.is_known and not wrong(replay))


def gradient_effects(program: Program) -> Iterator[StepEffect]:
    """What a backward pass leaves behind: the gradients of weights and of what the model took."""
    for value, gradient in program.gradients.items():
        key = value.key
        if gradient.key.slot.is_parameter_gradient and not key.slot.is_weight:
            key = gradient.key.site.key(gradient.key.slot.value)  # which no step has recorded
        if key.slot.is_weight or (key.op == ROOT and key.slot.is_input):
            yield StepEffect(f"gradient of {unwrapped(key.op)} {key.slot}", gradient, leaf=value)


def _gradient_nodes(program: Program) -> Iterator[tuple[int, Node]]:
    """A node for each gradient, and the first place in the program that it comes from.

    A gradient is known by the calls that handed it back, each of which adds a term. A call that
    hands back what its own was made of, such as a view of it, adds nothing. Where the backward pass
    was recorded call by call, what computed a gradient is known.
    """
    takers: dict[ValueId, list[tuple[int, Node, str]]] = {}
    behind: dict[ValueId, set[ValueId]] = {}  # by gradient: those that it was made of
    for place, node in reversed(list(enumerate(program.nodes))):
        given = [g for slot, g in node.gradients.items() if slot.startswith("grad_output")]
        through = set(given).union(*(behind.get(each, ()) for each in given))
        for slot, gradient in node.gradients.items():
            if slot.startswith("grad_input") and given and gradient not in through:
                takers.setdefault(gradient, []).append((place, node, slot.removeprefix("grad_")))
                behind.setdefault(gradient, set()).update(through)
    for gradient, found in takers.items():
        producer = program.producers.get(gradient)
        if producer is not None and _kind(producer) is not None:
            continue
        yield min(place for place, _, _ in found), gradient_node(gradient, found[::-1])


def gradient_node(gradient: ValueId, takers: Sequence[tuple[int, Node, str]]) -> Node:
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


def _kind(node: Node) -> FunctionKind | None:
    try:
        return function_named(node.call.target).kind
    except Unreplayable:
        return None
