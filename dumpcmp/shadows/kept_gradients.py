"""Gradients that nobody set to zero since the step before: what this one hands back is added."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Kept, Record
from dumpcmp.nouns.replay import Replay
from dumpcmp.replay.holding import hold
from dumpcmp.replay.rating import Rerun
from dumpcmp.shadows.gradient_sums import GradientSum, LoadRecorded, hands_back
from dumpcmp.shadows.program import Node, OwnOperation, Program, ValueId

_OUTPUT = "output.0"
_BEFORE = "before"


@dataclass(frozen=True, slots=True)
class GradientSoFar:
    """A gradient that was added to what the step before had left."""

    added: OwnOperation

    @property
    def expression(self) -> Hashable:
        return "gradient so far", self.added.expression

    @property
    def slot(self) -> str:
        return self.added.slot

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(self.added.calls)

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Both together, in float64."""
        made = self.added.run({slot: each for slot, each in given.items() if slot != _BEFORE})
        return {_OUTPUT: made[_OUTPUT] + given[_BEFORE].double()}

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay:
        """What was recorded, against the sum."""
        return hold(Rerun(self.run(given), num_ops=1 + len(self.calls)), _OUTPUT, got)


def earlier_gradient(gradient: ValueId) -> ValueId:
    """The same gradient after the step before."""
    key = gradient.key
    return ValueId(gradient.rank, Key(key.model, key.step - 1, key.op, key.call, key.slot))


def with_earlier_gradients(archive: Archive, program: Program) -> Program:
    """`program`, which knows what the step before left of its weights' gradients."""
    found: dict[ValueId, Record] = {}
    for gradient in program.records:
        earlier = earlier_gradient(gradient)
        if not gradient.key.slot.is_parameter_gradient or earlier.key not in archive:
            continue
        record = next((r for r in archive.shards(earlier.key) if r.rank == gradient.rank), None)
        if record is not None and record.kept is Kept.FULL:
            found[earlier] = record
    return replace(program, records={**found, **program.records}) if found else program


def so_far(program: Program, node: Node) -> Node | None:
    """`node`, as it adds to what the step before left of its gradient; None where nobody knows."""
    earlier = earlier_gradient(_made_by(node))
    if node.own is None or earlier not in program.records:
        return None
    takes = {**node.takes, _BEFORE: earlier}
    return replace(node, takes=takes, own=GradientSoFar(node.own))


def is_kept(program: Program, gradient: ValueId) -> bool:
    """Whether a gradient was added to what the step before had left."""
    node = program.producers.get(gradient)
    return node is not None and isinstance(node.own, GradientSoFar)


def knows_earlier(program: Program, gradient: ValueId) -> bool:
    """Whether it is on record what the step before left of a gradient."""
    return earlier_gradient(gradient) in program.records


def with_kept_gradients(program: Program, load: LoadRecorded) -> Program:
    """`program`, in which gradients that calls alone do not explain are added to earlier ones.

    Those of all weights are set to zero together: the smallest one tells whether they were.
    """
    found = {node: other for node in program.nodes if (other := _added(program, node)) is not None}
    sizes = {node: math.prod(program.records[_made_by(node)].shape) for node in found}
    if not found or _is_right(min(found, key=lambda node: sizes[node]), load):
        return program
    kept = {node for node, other in found.items() if _is_right(other, load)}
    nodes = [found[node] if node in kept else node for node in program.nodes]
    return replace(program, nodes=nodes)


def _added(program: Program, node: Node) -> Node | None:
    is_sum = isinstance(node.own, GradientSum) and len(node.gives) == 1
    return so_far(program, node) if is_sum else None


def _made_by(node: Node) -> ValueId:
    return next(iter(node.gives.values()))


def _is_right(node: Node, load: LoadRecorded) -> bool:
    return hands_back(node, _made_by(node), load)
