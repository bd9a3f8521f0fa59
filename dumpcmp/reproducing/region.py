"""Part of a recorded program: the calls behind one value, back to those taken as given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.errors import MissingValueError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.reproducing.statements import Statement
from dumpcmp.shadows.program import Node, Program, ValueId, read_ranks

MOST_CALLS = 60
MOST_GAPS = 64  # times its elements that a value may take in memory


class CodeStatement(Protocol):
    """One recorded call as plain code."""

    @property
    def call(self) -> Call: ...

    @property
    def takes(self) -> Mapping[str, str]: ...

    def lines(self) -> list[str]: ...

    def run(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]: ...

    def with_number(self, old: int, new: int) -> CodeStatement: ...


@dataclass(frozen=True, slots=True)
class CodeRegion:
    """Statements in the order in which they run, and what goes in and comes out of them."""

    statements: Sequence[CodeStatement]
    inputs: Mapping[str, ValueId]  # by variable, in the order in which they are used
    output: str  # variable

    @property
    def lines(self) -> list[str]:
        """The body of a function."""
        lines = [line for one in self.statements for line in one.lines()]
        return [*lines, f"return {self.output}"]

    def run(self, values: Mapping[str, Tensor]) -> Tensor:
        """What it gives in float64, or as it is where every bit is known."""
        known = dict(values)
        for statement in self.statements:
            known |= statement.run(known)
        return known[self.output]

    def with_number(self, old: int, new: int) -> CodeRegion:
        """The same with another number wherever `old` stands among the arguments of its calls."""
        return replace(self, statements=[one.with_number(old, new) for one in self.statements])


class RankProgram:
    """One step of one rank of a run, in which regions can be cut out."""

    def __init__(self, archive: Archive, model: str, step: int, rank: int = 0) -> None:
        self.archive, self.rank = archive, rank
        self.program = _of_rank(archive, model, step, rank)

    def value(self, key: Key) -> ValueId:
        """The value that was recorded under `key`, by its first name."""
        here = ValueId(self.rank, key)
        return self.program.places.get(here, here)

    def tensor(self, value: ValueId) -> Tensor:
        """The elements of `value`, with the strides that they had in the run."""
        record = self.program.records[value]
        return restrided(self.archive.tensor(record), record.stride)

    def producer(self, value: ValueId) -> Node | None:
        """The call that gave `value`, if one was recorded."""
        return self.program.producers.get(value)

    def behind(
        self,
        output: ValueId,
        is_given: Callable[[ValueId], bool],
        known: Mapping[ValueId, str] | None = None,
        prefix: str = "x",
    ) -> CodeRegion:
        """The calls behind `output`, back to values that are given or that no call made.

        Values that have a name already, for another region that takes them, are `known` by it.
        """
        nodes = sorted(self._nodes(output, is_given), key=lambda node: node.call.order)
        if not nodes:
            raise Unreplayable(f"no recorded call gives {output}")
        names: dict[ValueId, str] = {}
        inputs: dict[str, ValueId] = {}
        statements: list[CodeStatement] = []
        for node in nodes:
            for value in node.takes.values():
                if value not in names:
                    names[value] = (known or {}).get(value, f"{prefix}{len(inputs)}")
                    inputs[names[value]] = value
            gives = {slot: f"v{len(names) + i}" for i, slot in enumerate(self._outputs(node))}
            takes = {slot: names[value] for slot, value in node.takes.items()}
            statements.append(self._statement(node, takes, gives))
            names |= {v: gives[s] for s, v in node.gives.items() if s in gives}
        return CodeRegion(statements, inputs, names[output])

    def _statement(
        self, node: Node, takes: Mapping[str, str], gives: Mapping[str, str]
    ) -> CodeStatement:
        return Statement(node.call, takes, gives)

    def _nodes(self, output: ValueId, is_given: Callable[[ValueId], bool]) -> set[Node]:
        found: set[Node] = set()
        waiting = [output]
        while waiting:
            value = waiting.pop()
            node = self.producer(value)
            if node is None or node in found or (value != output and is_given(value)):
                continue
            found.add(node)
            waiting += node.takes.values()
            if len(found) > MOST_CALLS:
                raise Unreplayable(f"more than {MOST_CALLS} calls are behind {output}")
        return found

    def _outputs(self, node: Node) -> Iterator[str]:
        """The slots of all that a call gave, those too that repeat an earlier value."""
        keys = self.archive.keys_of(node.call.model, node.call.step, node.call.op)
        here = (key for key in keys if key.site == node.call.site and key.slot.is_output)
        yield from sorted((str(key.slot) for key in here), key=_in_order)


def restrided(dense: Tensor, stride: tuple[int, ...]) -> Tensor:
    """`dense` in memory as `stride` says; as it is where elements would share their places."""
    if not stride or not dense.numel() or stride == dense.stride() or len(stride) != dense.ndim:
        return dense
    last = sum((n - 1) * s for n, s in zip(dense.shape, stride, strict=True))
    own = dense
    for dim, step in enumerate(stride):
        own = own.narrow(dim, 0, 1) if step == 0 else own
    if last >= MOST_GAPS * dense.numel() or own.numel() > last + 1:
        return dense
    room = dense.new_zeros(last + 1)
    room.as_strided(own.shape, stride).copy_(own)
    return room.as_strided(dense.shape, stride)


def _in_order(slot: str) -> list[tuple[bool, int, str]]:
    words = slot.split(".")
    return [(w.isdecimal(), int(w) if w.isdecimal() else 0, w) for w in words]


def _of_rank(archive: Archive, model: str, step: int, rank: int) -> Program:
    for program in read_ranks(archive, model, step):
        if program.ranks <= {rank}:
            return program
    raise MissingValueError(
        f"{archive.path} has no calls of {model} at step {step} on rank {rank}",
        hint="dumpcmp show lists what it has",
    )
