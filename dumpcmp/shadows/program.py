"""The program of one step: recorded calls, the values that they take and give, and its effects."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.effects import Effect
from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.record import Call, Kept, Phase, Record
from dumpcmp.nouns.replay import Replay
from dumpcmp.replay.rating import Rerun
from dumpcmp.shadows.graph_links import with_graph_links, without_graphs
from dumpcmp.shadows.state_after import left_behind

_GIVEN_OUT = frozenset(effect.op for effect in Effect if not effect.is_of_end)


class ValueId(NamedTuple):
    """A value of a run, under the first name that a rank recorded it by."""

    rank: int
    key: Key

    def __str__(self) -> str:
        return f"rank {self.rank} {self.key}" if self.rank else str(self.key)


class OwnOperation(Protocol):
    """What no single recorded function does: a gradient, or a memory that was written to."""

    @property
    def expression(self) -> Hashable: ...  # the same for the same operation, in whatever run

    @property
    def slot(self) -> str: ...  # of its call, by which a reader knows what it gives

    @property
    def calls(self) -> Sequence[Call]: ...  # that it runs again

    def run(self, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]: ...  # in float64

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay | None: ...  # None: proven


@runtime_checkable
class RatedOperation(OwnOperation, Protocol):
    """Such an operation whose terms may cancel."""

    def rated(self, given: Mapping[str, Tensor]) -> Rerun: ...  # run, and how well determined it is

    def level(self, given: Mapping[str, Tensor]) -> float: ...  # the size of its terms


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One recorded call of a function, with the values that it took and gave, by slot."""

    rank: int
    call: Call
    takes: Mapping[str, ValueId]
    gives: Mapping[str, ValueId]
    own: OwnOperation | None = None  # what it does, where that is not its function
    gradients: Mapping[str, ValueId] = field(default_factory=dict)  # of its values, by slot

    def __str__(self) -> str:
        where = f" on rank {self.rank}" if self.rank else ""
        return f"{self.call.op}#{self.call.call}{where}"


@dataclass(frozen=True, slots=True)
class StepEffect:
    """Something that a step leaves behind: what the model returned, a gradient, a buffer."""

    name: str  # "output.0", "grad of layers.0.weight"; empty: it is known by its numbers alone
    value: ValueId
    is_state: bool = False  # what the next step finds, such as a buffer
    leaf: ValueId | None = None  # whose gradient it is


@dataclass(eq=False)
class Program:
    """The calls of one step on all ranks, each rank's in order of execution."""

    model: str
    step: int
    nodes: Sequence[Node]
    records: Mapping[ValueId, Record]  # of each value, where it was recorded first
    effects: Sequence[StepEffect]
    gradients: Mapping[ValueId, ValueId] = field(default_factory=dict)  # of modules' values
    places: Mapping[ValueId, ValueId] = field(default_factory=dict)  # each slot, and its value
    unlinked: str = ""  # why it is not known what its calls took, if it is not
    num_parts: int = 1  # microbatches
    joint: frozenset[ValueId] = frozenset()  # gradients of weights that other steps add to
    producers: Mapping[ValueId, Node] = field(init=False)
    consumers: Mapping[ValueId, Sequence[Node]] = field(init=False)

    def __post_init__(self) -> None:
        producers: dict[ValueId, Node] = {}
        consumers: dict[ValueId, list[Node]] = {}
        for node in self.nodes:
            for value in node.takes.values():
                consumers.setdefault(value, []).append(node)
            for value in node.gives.values():
                producers.setdefault(value, node)
        self.producers, self.consumers = producers, consumers

    @cached_property
    def slots_of(self) -> Mapping[ValueId, Sequence[ValueId]]:
        """All slots that hold a value, which `places` has the other way round."""
        found: dict[ValueId, list[ValueId]] = {}
        for place, value in self.places.items():
            found.setdefault(value, []).append(place)
        return found

    @property
    def ranks(self) -> set[int]:
        """Those that have calls or effects."""
        return {node.rank for node in self.nodes} | {each.value.rank for each in self.effects}

    @property
    def is_whole(self) -> bool:
        """Whether one rank ran it at once."""
        return len(self.ranks) == 1 and self.num_parts == 1

    @property
    def leaves(self) -> Iterator[ValueId]:
        """The values that no recorded call made, each once, in the order in which they are used."""
        taken = (value for node in self.nodes for value in node.takes.values())
        shown = (effect.value for effect in self.effects)
        for value in dict.fromkeys((*taken, *shown)):
            if value not in self.producers:
                yield value

    def behind(self, values: Sequence[ValueId]) -> set[Node]:
        """The calls that `values` depend on."""
        found: set[Node] = set()
        waiting = list(values)
        while waiting:
            node = self.producers.get(waiting.pop())
            if node is not None and node not in found:
                found.add(node)
                waiting += node.takes.values()
        return found


def read_ranks(archive: Archive, model: str, step: int) -> Iterator[Program]:
    """The program of one step of `model`, as each rank of `archive` recorded it."""
    for held in archive.rank_steps(model, step):
        calls, effect_calls = held.calls(), held.calls(effects=True)
        listed = {record.key: record for record in held.records()}
        listed = with_graph_links(listed, calls, effect_calls, held.rank)
        state = list(left_behind(archive, model, step, held.rank))
        others = [r for r in held.records(effects=True) if r.key.op in _GIVEN_OUT]
        of_rank = _RankReader(held.rank, listed, state, _weights_taken_first(listed), others)
        yield Program(
            model,
            step,
            list(of_rank.nodes(calls)),
            of_rank.records(),
            [*of_rank.effects(), *of_rank.state_effects()],
            dict(of_rank.gradients()),
            {ValueId(held.rank, key): of_rank.value(key) for key in listed} | of_rank.ends(),
            without_graphs(calls, effect_calls),
        )


def _bytes(record: Record) -> tuple[object, ...]:
    return record.digest, record.dtype, record.shape


def _weights_taken_first(held: Mapping[Key, Record]) -> dict[Key, Key]:
    """Weights that calls took before their module was seen, if it was: where, and their names."""
    found: dict[Key, Key] = {}
    for key, record in held.items():
        first = record.same_as
        if key.slot.is_weight and first is not None and first in held and first.slot.is_input:
            found.setdefault(first, key)
    return found


@dataclass(frozen=True, slots=True)
class _RankReader:
    """One rank's records of a step."""

    rank: int
    held: Mapping[Key, Record]
    state: Sequence[tuple[str, Record]]  # what the step may have left behind
    weights: Mapping[Key, Key]  # where one was first taken by a call, and its own name
    others: Sequence[Record]  # what it gave out inside of objects

    def value(self, key: Key) -> ValueId:
        """The value that was recorded under `key`, by its first name."""
        seen = {key}
        while (before := self.held[key].same_as) is not None and before in self.held:
            if before in seen:
                break  # a damaged archive: links never run in circles
            seen.add(before)
            key = before
        return ValueId(self.rank, self.weights.get(key, key))

    def nodes(self, calls: Sequence[Call]) -> Iterator[Node]:
        slots: dict[tuple[str, int], list[Key]] = {}
        for key in self.held:
            slots.setdefault((key.op, key.call), []).append(key)
        for call in sorted(calls, key=lambda call: call.order):
            if call.op.is_module or call.phase is Phase.RECOMPUTE:
                continue
            keys = slots.get((call.op, call.call), [])
            takes = {str(key.slot): self.value(key) for key in keys if key.slot.is_input}
            gives = {  # what was recorded before is no result of this call
                str(key.slot): ValueId(self.rank, key)
                for key in keys
                if key.slot.is_output and self.value(key).key == key
            }
            gradients = {str(key.slot): self.value(key) for key in keys if key.slot.is_gradient}
            yield Node(self.rank, call, takes, gives, None, gradients)

    def records(self) -> dict[ValueId, Record]:
        return {
            ValueId(self.rank, self.weights.get(key, key)): record
            for key, record in self.held.items()
            if record.same_as is None or record.same_as not in self.held
        } | {
            effect.value: record
            for effect, record in self._states()
            if effect.value.key not in self.held
        }

    def gradients(self) -> Iterator[tuple[ValueId, ValueId]]:
        """Each value of a module whose gradient was recorded, and that."""
        for key in self.held:
            if key.slot.is_gradient and key.op.is_module:
                value = key.site.key(key.slot.value)
                if value in self.held:
                    yield self.value(value), self.value(key)
                elif value.slot.is_weight:  # which was recorded in another step
                    yield ValueId(self.rank, value), self.value(key)

    def effects(self) -> Iterator[StepEffect]:
        for key in self.held:
            if key.op == ROOT and key.slot.is_output and key.call == 0:
                yield StepEffect(key.slot, self.value(key))
        for record in self.others:
            first = (
                record.same_as if record.same_as in self.held else self._made.get(_bytes(record))
            )
            if first is not None:
                name = f"{record.key.op.function} {record.key.slot}"
                yield StepEffect(name, self.value(first))

    @property
    def _made(self) -> dict[tuple[object, ...], Key]:
        """What calls gave, or else took, by its bytes; the last of those that have the same."""
        found: dict[tuple[object, ...], Key] = {}
        for is_given in (False, True):
            for key, record in self.held.items():
                is_kept = record.kept is Kept.FULL and not key.op.is_module
                if is_kept and (key.slot.is_output if is_given else key.slot.is_input):
                    found[_bytes(record)] = key
        return found

    def state_effects(self) -> Iterator[StepEffect]:
        """What the step leaves behind for the next one, or in the end."""
        return (effect for effect, _ in self._states())

    def ends(self) -> dict[ValueId, ValueId]:
        """What is recorded of the state at the end, and the value that each is."""
        return {
            ValueId(self.rank, record.key): effect.value
            for effect, record in self._states()
            if record.key.op.is_effect
        }

    def _states(self) -> Iterator[tuple[StepEffect, Record]]:
        """What holds the bytes that a call of the step gave, and buffers that were written to."""
        made = self._made
        started = {record.digest for key, record in self.held.items() if key.slot.is_weight}
        for name, record in self.state:
            key = None if record.digest in started else made.get(_bytes(record))
            if key is not None:
                yield StepEffect(name, self.value(key), is_state=True), record
            elif name and record.digest not in started:
                yield StepEffect(name, ValueId(self.rank, record.key), is_state=True), record
