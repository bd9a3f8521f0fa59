"""Microbatches of one step as one program: they share weights, and add up their gradients."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Replay
from dumpcmp.replay.holding import hold
from dumpcmp.replay.rating import Rerun
from dumpcmp.shadows.gradient_sums import gradient_nodes, hands_back
from dumpcmp.shadows.kernel_checks import load_value
from dumpcmp.shadows.program import Node, Program, ValueId

_OUTPUT = "output.0"
_Gradients = Mapping[ValueId, list[ValueId]]  # of a weight: as each microbatch left it


@dataclass(frozen=True, slots=True)
class SumOfTerms:
    """A gradient to which each microbatch adds a term that is recorded by itself."""

    slot: str
    calls: tuple[Call, ...] = ()

    @property
    def expression(self) -> Hashable:
        return ("sum of terms",)

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sum."""
        return {_OUTPUT: torch.stack([each.double() for each in given.values()]).sum(0)}

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay:
        """What was recorded, against the sum of what was recorded of its terms."""
        return hold(Rerun(self.run(given), num_ops=len(given)), _OUTPUT, got)


def with_sums_of_terms(program: Program) -> Program:
    """`program`, in which weights' gradients are the sums of what microbatches added to them."""
    made = list(_sums_of_terms(program))
    return replace(program, nodes=[*program.nodes, *made]) if made else program


def _sums_of_terms(program: Program) -> Iterator[Node]:
    terms = _gradients(program)
    for weight, gradient in program.gradients.items():
        some = terms.get(weight, [])
        if len(some) < 2 or gradient in program.producers or gradient in some:
            continue
        taker = program.consumers[weight][0]
        takes = {f"term {at}": each for at, each in enumerate(some)}
        own = SumOfTerms(f"grad_{next(s for s, v in taker.takes.items() if v == weight)}")
        yield Node(gradient.rank, taker.call, takes, {_OUTPUT: gradient}, own)


def with_named_weights(program: Program) -> Program:
    """`program`, in which gradients are of weights that one of its steps has recorded.

    A weight that none of them has is what calls took that handed the gradient back.
    """
    named = {
        (value.rank, value.key.op, value.key.slot): value
        for value in reversed(list(program.records))
        if value.key.slot.is_weight
    }
    taken = {
        gradient: node.takes[slot.removeprefix("grad_")]
        for node in program.nodes
        for slot, gradient in node.gradients.items()
        if slot.removeprefix("grad_") in node.takes
    }
    found: dict[ValueId, ValueId] = {}
    for value, gradient in program.gradients.items():
        known = value if value in program.records else named.get(
            (value.rank, value.key.op, value.key.slot), taken.get(gradient)
        )  # fmt: skip
        if known is not None:
            found[known] = gradient
    return replace(program, gradients=found)


def with_shared_weights(archive: Archive, program: Program) -> Program:
    """`program`, in which all microbatches take the same weights, and weights have one gradient.

    What is recorded of a gradient after a microbatch is the sum so far: the last is the gradient.
    """
    program = _renamed(program, _weights(program))
    found = {weight: some for weight, some in _gradients(program).items() if len(some) > 1}
    whole = program.gradients  # where what each microbatch adds is recorded by itself, too
    found = {weight: some for weight, some in found.items() if whole.get(weight) in (None, *some)}
    is_rewound = _is_rewound(archive, program, found)
    last = {weight: some[0 if is_rewound else -1] for weight, some in found.items()}
    names = {each: last[weight] for weight, some in found.items() for each in some}
    return _with_terms(_renamed(program, names))


def _weights(program: Program) -> dict[ValueId, ValueId]:
    """Leaves that have the bytes of a weight of their rank, and the weight by its first name.

    Of several such weights, it is that of the same module.
    """
    known: dict[tuple[int, str], list[ValueId]] = {}
    for value, record in program.records.items():
        digest = record.digest
        if value.key.slot.is_weight and digest and value not in program.producers:
            known.setdefault((value.rank, digest), []).append(value)
    found = {}
    for leaf in program.leaves:
        weights = known.get((leaf.rank, program.records[leaf].digest), [])
        own = [each for each in weights if each.key.op.module == leaf.key.op.module]
        weight = next(iter(own or weights), None)
        if weight is None or weight == leaf:
            continue
        if weight.key.step != leaf.key.step or (own and not leaf.key.slot.is_weight):
            found[leaf] = weight
    return found


def _renamed(program: Program, names: Mapping[ValueId, ValueId]) -> Program:
    """`program` with other names of some values."""

    def named(values: Mapping[str, ValueId]) -> dict[str, ValueId]:
        return {slot: names.get(value, value) for slot, value in values.items()}

    return replace(
        program,
        nodes=[
            replace(node, takes=named(node.takes), gradients=named(node.gradients))
            for node in program.nodes
        ],
        gradients={
            names.get(value, value): names.get(gradient, gradient)
            for value, gradient in program.gradients.items()
        },
        places={place: names.get(value, value) for place, value in program.places.items()}
        | dict(names),
    )


def _gradients(program: Program) -> _Gradients:
    """The gradients of each weight, by microbatches."""
    found: dict[ValueId, dict[ValueId, None]] = {}
    for node in program.nodes:
        for slot, value in node.takes.items():
            gradient = node.gradients.get(f"grad_{slot}")
            if value.key.slot.is_weight and gradient is not None:
                found.setdefault(value, {})[gradient] = None
    return {weight: sorted(some, key=lambda each: each.key.step) for weight, some in found.items()}


def _is_rewound(archive: Archive, program: Program, found: _Gradients) -> bool:
    """Whether microbatches went back in the opposite order: the last one has its own term alone."""
    nodes = {value: node for node in gradient_nodes(program) for value in node.gives.values()}
    for some in found.values():
        alone = [_is_alone(archive, program, nodes.get(each), each) for each in (some[0], some[-1])]
        if alone.count(True) == 1:
            return alone[1]
    return False


def _is_alone(archive: Archive, program: Program, node: Node | None, gradient: ValueId) -> bool:
    """Whether a gradient is what the calls of its microbatch hand back, and nothing else."""
    if node is None or node.own is None:
        return False
    return hands_back(node, gradient, partial(load_value, archive, program))


def _with_terms(program: Program) -> Program:
    """`program`, in which each call that takes a weight hands back a term of its gradient."""
    found = _gradients(program)
    return replace(program, nodes=[_with_term(node, found) for node in program.nodes])


def _with_term(node: Node, found: _Gradients) -> Node:
    if not any(slot.startswith("grad_output") for slot in node.gradients):
        return node
    more = dict(_terms(node, found))
    return replace(node, gradients={**node.gradients, **more}) if more else node


def _terms(node: Node, found: _Gradients) -> Iterator[tuple[str, ValueId]]:
    for slot, value in node.takes.items():
        if value in found and f"grad_{slot}" not in node.gradients:
            yield f"grad_{slot}", found[value][0]
