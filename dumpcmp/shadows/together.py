"""What ranks do together: a collective is one operation on what all ranks of its group gave."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.arithmetic import Collective
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.given import argument_tree
from dumpcmp.nouns.key import Slot
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.replay import Choice, Replay
from dumpcmp.nouns.spoken import counted
from dumpcmp.nouns.value import DTYPES
from dumpcmp.replay.rating import Rerun
from dumpcmp.shadows.copied_values import with_copies
from dumpcmp.shadows.joint_backward import gradients_of_several_steps
from dumpcmp.shadows.local_shapes import with_local_shapes
from dumpcmp.shadows.program import Node, Program, StepEffect, ValueId, read_ranks
from dumpcmp.shadows.quantities import tensor_of
from dumpcmp.shadows.rewritten_memory import with_writes
from dumpcmp.shadows.shared_tables import with_shared_tables
from dumpcmp.shadows.shared_terms import with_shared_terms
from dumpcmp.shadows.shared_weights import with_named_weights, with_shared_weights
from dumpcmp.shadows.written_moments import with_written_moments

_COLLECTIVES = frozenset(Collective)
_ALIKE = frozenset((Collective.ALL_REDUCE, Collective.BROADCAST, Collective.ALL_GATHER))
_REDUCING = frozenset((Collective.ALL_REDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER))
_OUTPUT = "output.0"


@dataclass(frozen=True, slots=True)
class RankDelivery:
    """What one rank of a group gets by a collective. Inputs are named ``PLACE input.0``."""

    kind: Collective
    place: int  # of the rank in its group
    size: int  # of the group
    nth: int  # of the outputs
    shape: tuple[int, ...]  # that is got
    reduction: str = "sum"
    source: int = 0  # the place that broadcasts
    cuts: tuple[tuple[int, ...], ...] = ()  # sizes of the parts that each rank sends

    @property
    def expression(self) -> Hashable:
        """The same for all ranks that get the same."""
        place = -1 if self.kind in _ALIKE else self.place
        said = self.reduction, self.source, self.cuts
        return "together", self.kind, place, self.size, self.nth, self.shape, said

    @property
    def slot(self) -> str:
        return f"output.{self.nth}"

    @property
    def calls(self) -> tuple[Call, ...]:
        """None that round."""
        return ()

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the rank gets, in float64."""
        return {_OUTPUT: self._delivered(self._by_rank(given)).reshape(self.shape)}

    def rated(self, given: Mapping[str, Tensor]) -> Rerun:
        """The same, as if nothing cancelled."""
        return Rerun(self.run(given))

    def level(self, given: Mapping[str, Tensor]) -> float:
        """The size of its terms, if nothing of them cancelled."""
        return float(self.run({slot: each.abs() for slot, each in given.items()})[_OUTPUT].mean())

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay:
        """What a rank got, against what it should have got: sums may be rounded."""
        wide = {slot: tensor_of(each) for slot, each in given.items()}
        expected, found = self.run(wide)[_OUTPUT], tensor_of(got)
        apart = (found - expected).abs() if found.is_floating_point() else found != expected
        if self.kind in _REDUCING and found.is_floating_point():
            eps = DTYPES[str(got.dtype).removeprefix("torch.")].eps
            terms = self.run({slot: each.abs() for slot, each in wide.items()})[_OUTPUT]
            apart = apart > self.size * eps * terms
        others = int((apart != 0).sum() - (found.isnan() & expected.isnan()).sum())
        if not others:
            return Replay(introduced=0.0, count=got.numel())
        elements = counted(others, "element is", "elements are")
        return Replay(choice=Choice(f"{elements} not what the ranks of the group gave"))

    def _by_rank(self, given: Mapping[str, Tensor]) -> list[list[Tensor]]:
        found: list[list[Tensor]] = [[] for _ in range(self.size)]
        for name, tensor in given.items():
            found[int(name.partition(" ")[0])].append(tensor)
        return found

    def _delivered(self, given: list[list[Tensor]]) -> Tensor:
        match self.kind:
            case Collective.ALL_REDUCE | Collective.REDUCE:
                return self._reduced([each[self.nth] for each in given])
            case Collective.BROADCAST:
                return given[self.source][self.nth]
            case Collective.REDUCE_SCATTER if len(given[0]) > 1:
                return self._reduced([each[self.place] for each in given])
            case Collective.REDUCE_SCATTER:
                return self._reduced([each[0] for each in given]).chunk(self.size)[self.place]
            case Collective.ALL_GATHER | Collective.GATHER:
                if given[0][0].shape == self.shape:
                    return given[self.nth][0]
                return torch.cat([each[0].reshape(-1) for each in given])
            case Collective.ALL_TO_ALL if len(given[0]) > 1:
                return given[self.nth][self.place]
            case Collective.ALL_TO_ALL:
                return torch.cat(
                    [self._cut(n, each[0]).reshape(-1) for n, each in enumerate(given)]
                )
            case Collective.SCATTER:
                return given[self.source][self.place]
            case _:
                return given[0][0]

    def _cut(self, sender: int, sent: Tensor) -> Tensor:
        cut = self.cuts[sender] if self.cuts else ()
        return (
            torch.split(sent, list(cut))[self.place] if cut else sent.chunk(self.size)[self.place]
        )

    def _reduced(self, terms: Sequence[Tensor]) -> Tensor:
        stacked = torch.stack([term.reshape(terms[0].shape) for term in terms])
        match self.reduction:
            case "sum":
                return stacked.sum(0)
            case "avg":
                return stacked.mean(0)
            case "max":
                return stacked.amax(0)
            case "min":
                return stacked.amin(0)
            case "product":
                return stacked.prod(0)
        raise DumpcmpError(f"the reduction {self.reduction!r} is not known")


_ModelStep = tuple[str, int]  # of a model


def read_program(
    archive: Archive, model: str, step: int, parts: Sequence[_ModelStep] = ()
) -> Program:
    """The program of one step of `model`, as all ranks of `archive` ran it together.

    `parts` are the recorded steps that it is made of, if these are microbatches or stages.
    """
    steps = parts or [(model, step)]
    ranks = [
        with_writes(archive, with_written_moments(rank))
        for one in steps
        for rank in read_ranks(archive, *one)
    ]
    if len(ranks) == 1:
        alone = with_named_weights(ranks[0])
        alone = replace(alone, joint=gradients_of_several_steps(archive, alone))
        return in_order_of_use(with_copies(archive, alone)) or alone
    records = {value: record for rank in ranks for value, record in rank.records.items()}
    nodes = [node for rank in ranks for node in rank.nodes]
    effects: list[StepEffect] = [effect for rank in ranks for effect in rank.effects]
    gradients = {value: each for rank in ranks for value, each in rank.gradients.items()}
    places = {place: value for rank in ranks for place, value in rank.places.items()}
    unlinked = next((rank.unlinked for rank in ranks if rank.unlinked), "")
    num = len({each for _, each in parts}) or 1
    apart = with_named_weights(
        Program(model, step, nodes, records, effects, gradients, places, unlinked, num)
    )
    if num > 1:
        apart = with_shared_weights(archive, apart)
    joined = with_local_shapes(replace(apart, nodes=_Joining(apart).nodes()))
    program = with_shared_terms(with_shared_tables(archive, joined))
    for across in (True, False):
        if found := in_order_of_use(with_copies(archive, program, across)):
            return found
    if num > 1 and (found := in_order_of_use(program)):
        return found
    raise DumpcmpError(f"what the ranks gave each other at step {step} runs in circles")


def in_order_of_use(program: Program) -> Program | None:
    """`program`, each call after those that make what it takes; None where that runs in circles."""
    nodes = list(_in_order(program.nodes))
    if len(nodes) < len(program.nodes):
        return None
    return replace(program, nodes=nodes)


@dataclass(eq=False)
class _Joining:
    """Finds which calls of ranks are one collective."""

    program: Program

    def nodes(self) -> list[Node]:
        """All nodes, those of collectives with what the other ranks gave."""
        calls = {node: words_of(node) for node in self.program.nodes if is_collective(node)}
        joined = {node: made for nodes in self._events(calls) for node, made in nodes}
        return [made for node in self.program.nodes for made in joined.get(node, [node])]

    def _events(
        self, calls: Mapping[Node, Mapping[str, Any]]
    ) -> Iterator[Iterator[tuple[Node, list[Node]]]]:
        numbers: dict[tuple[object, ...], int] = {}
        events: dict[tuple[object, ...], dict[int, Node]] = {}
        for node, words in calls.items():
            group = tuple(words.get("group", ()))
            if node.rank not in group:
                continue
            name = _letter(node, words, group)
            if not name:
                counted_as = (node.rank, group, node.call.op.function)
                numbers[counted_as] = numbers.get(counted_as, -1) + 1
                name = (group, node.call.op.function, numbers[counted_as])
            events.setdefault(name, {})[node.rank] = node
        for nodes in events.values():
            words = calls[next(iter(nodes.values()))]
            yield self._joined(nodes, words, calls)

    def _joined(
        self,
        nodes: Mapping[int, Node],
        words: Mapping[str, Any],
        calls: Mapping[Node, Mapping[str, Any]],
    ) -> Iterator[tuple[Node, list[Node]]]:
        first = next(iter(nodes.values()))
        kind, group = Collective(first.call.op.function), list(words["group"])
        if kind.is_letter:
            senders = [n for n in nodes.values() if n.call.op.function == Collective.SEND]
            members = senders[:1]
        else:
            members = [nodes[rank] for rank in group if rank in nodes]
        if len(members) != (1 if kind.is_letter else len(group)):
            return  # a rank left no record of it
        takes = {
            f"{place} {slot}": value
            for place, node in enumerate(members)
            for slot, value in _in_slots(node.takes)
        }
        cuts = tuple(tuple(calls[node].get("input_split_sizes") or ()) for node in members)
        for rank, node in nodes.items():
            made = [
                self._delivery(node, kind, group.index(rank), words, cuts, takes, slot, value)
                for slot, value in node.gives.items()
                if not (kind is Collective.REDUCE and group.index(rank) != _root(words))
            ]
            if made:
                yield node, made

    def _delivery(
        self,
        node: Node,
        kind: Collective,
        place: int,
        words: Mapping[str, Any],
        cuts: tuple[tuple[int, ...], ...],
        takes: Mapping[str, ValueId],
        slot: str,
        value: ValueId,
    ) -> Node:
        shape = self.program.records[value].shape
        nth, size = int(Slot(slot).name or 0), 1 if kind.is_letter else len(words["group"])
        reduction = str(words.get("op", "sum"))
        own = RankDelivery(kind, place, size, nth, shape, reduction, _root(words), cuts * any(cuts))
        return Node(node.rank, node.call, takes, {_OUTPUT: value}, own)


def is_collective(node: Node) -> bool:
    """Whether ranks run it together."""
    function = node.call.op.function
    return function in _COLLECTIVES and node.call.target == Collective(function).target


def words_of(node: Node) -> Mapping[str, Any]:
    """What a collective was told besides its tensors."""
    said = argument_tree(node.call).get("kwargs", {})
    return {word: value for word, value in said.items() if not isinstance(value, dict)}


def _root(words: Mapping[str, Any]) -> int:
    return int(words.get("root_rank", words.get("src", 0)) or 0)


def _letter(
    node: Node, words: Mapping[str, Any], group: tuple[int, ...]
) -> tuple[object, ...] | None:
    """Which letter it is, if it is one: both ends number them alike."""
    if not Collective(node.call.op.function).is_letter:
        return None
    mine = group.index(node.rank)
    ends = words.get("src", mine), words.get("dst", mine)
    return "letter", group, *ends, words.get("tag"), words.get("number")


def _in_slots(takes: Mapping[str, ValueId]) -> list[tuple[str, ValueId]]:
    """What was taken, in the order of its slots."""
    return sorted(takes.items(), key=lambda each: int(Slot(each[0]).name or 0))


def _in_order(nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes of all ranks, each after those that make what it takes."""
    makers = {value: node for node in nodes for value in node.gives.values()}
    waiting: dict[Node, int] = {}
    takers: dict[Node, list[Node]] = {}
    for node in nodes:
        before = {makers[value] for value in node.takes.values() if value in makers} - {node}
        waiting[node] = len(before)
        for each in before:
            takers.setdefault(each, []).append(node)
    ready = [(node.call.order, node.rank, at, node) for at, node in enumerate(nodes)
             if not waiting[node]]  # fmt: skip
    heapq.heapify(ready)
    number = len(nodes)
    while ready:
        node = heapq.heappop(ready)[-1]
        yield node
        for taker in takers.get(node, ()):
            waiting[taker] -= 1
            if not waiting[taker]:
                number += 1
                heapq.heappush(ready, (taker.call.order, taker.rank, number, taker))
