"""Gradients of weights that several steps of a model make together, by one backward pass.

A weight that two calls of a model take has one gradient, which is recorded in one of them alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.key import Op
from dumpcmp.shadows.program import Program, ValueId, read_ranks

_Taking = tuple[Op, str]  # a call, whichever it is, and the slot in which it takes a weight


def gradients_of_several_steps(archive: Archive, program: Program) -> frozenset[ValueId]:
    """Those gradients of weights in `program` in which the steps beside it have a part."""
    own: dict[_Taking, ValueId] = {}
    for node in program.nodes:
        for slot, value in node.takes.items():
            if value.key.slot.is_weight and (gradient := node.gradients.get(f"grad_{slot}")):
                own[node.call.op, slot] = gradient
    if not own:
        return frozenset()
    beside = {program.step - 1, program.step + 1}.intersection(archive.steps(program.model))
    taken = {one for step in beside for one in _handed_on(archive, program.model, step)}
    return frozenset(gradient for one, gradient in own.items() if one in taken)


def _handed_on(archive: Archive, model: str, step: int) -> Iterator[_Taking]:
    """Where a step takes what its backward pass went to, and has no gradient for it."""
    for rank in read_ranks(archive, model, step):
        for node in rank.nodes:
            if any(slot.startswith("grad_output") for slot in node.gradients):
                for slot in node.takes:
                    if f"grad_{slot}" not in node.gradients:
                        yield node.call.op, slot
