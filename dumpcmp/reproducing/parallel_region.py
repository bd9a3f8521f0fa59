"""Part of a program that ranks ran together: the calls of each rank, collectives among them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.arithmetic import Collective
from dumpcmp.nouns.given import argument_tree
from dumpcmp.nouns.key import Slot
from dumpcmp.nouns.layouts import Mode, ReduceOp, parse_layout
from dumpcmp.nouns.record import Call
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.reproducing.region import CodeRegion
from dumpcmp.shadows.quantities import tensor_of
from dumpcmp.shadows.together import RankDelivery

_SPELLED = frozenset((
    Collective.ALL_REDUCE, Collective.REDUCE, Collective.BROADCAST, Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL,
))  # fmt: skip
ValuesByRank = Mapping[int, Mapping[str, Tensor]]  # values by variable, of each rank


def is_collective_call(call: Call) -> bool:
    """Whether ranks make it together."""
    function = call.op.function
    return function in set(Collective) and call.target == Collective(function).target


@dataclass(frozen=True, slots=True)
class CollectiveStatement:
    """One rank's call of a collective, and the variables for what it takes and gives, by slot."""

    call: Call
    takes: Mapping[str, str]
    gives: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]  # of what it gives

    def __post_init__(self) -> None:
        if self.kind not in _SPELLED:
            raise Unreplayable(f"{self.call.op} has no counterpart that a script can call")
        if self.kind.keeps_shape and not len(self.takes) == len(self.gives) == 1:
            raise Unreplayable(f"{self.call.op} is given several tensors at once")

    @property
    def kind(self) -> Collective:
        return Collective(self.call.op.function)

    @property
    def words(self) -> Mapping[str, Any]:
        """What it was told besides its tensors."""
        said = argument_tree(self.call).get("kwargs", {})
        return {word: value for word, value in said.items() if not isinstance(value, dict)}

    @property
    def group(self) -> tuple[int, ...]:
        """The ranks that make it together."""
        return self._numbers("group")

    @property
    def root(self) -> int:
        """The place in the group of the rank that sends to all, or gets from all."""
        place = self.words.get("root_rank", self.words.get("src", 0)) or 0
        if type(place) is not int or not 0 <= place < len(self.group):
            raise Unreplayable(f"{self.call.op} names no rank of its group")
        return place

    @property
    def reduction(self) -> ReduceOp:
        """What makes one of the tensors of all ranks."""
        told = self.words.get("op", "sum")
        if told not in set(ReduceOp):
            raise Unreplayable(f"{self.call.op} reduces in a way that is not known")
        return ReduceOp(told)

    def sizes(self, word: str) -> tuple[int, ...]:
        """How a tensor is cut among the ranks, where it was told."""
        return self._numbers(word) if self.words.get(word) else ()

    def _numbers(self, word: str) -> tuple[int, ...]:
        told = self.words.get(word)
        if not isinstance(told, list) or not all(type(number) is int for number in told):
            raise Unreplayable(f"{self.call.op}: its {word} was not recorded as numbers")
        return tuple(told)

    def delivery(self, rank: int, slot: str, cuts: tuple[tuple[int, ...], ...]) -> RankDelivery:
        """What a rank gets as `slot`."""
        nth = int(Slot(slot).name or 0)
        return RankDelivery(
            self.kind, self.group.index(rank), len(self.group), nth, self.shapes[slot],
            self.reduction, self.root, cuts if any(cuts) else (),
        )  # fmt: skip

    def with_number(self, old: int, new: int) -> CollectiveStatement:
        """The same, where `old` is no size any more."""
        shapes = {
            slot: tuple(new if size == old else size for size in shape)
            for slot, shape in self.shapes.items()
        }
        return replace(self, shapes=shapes)

    def run(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One rank alone cannot know what the others give."""
        del values
        raise Unreplayable(f"{self.call.op} is one operation of several ranks")

    def lines(self) -> list[str]:
        """The call by its public name, on copies of what it changes."""
        group = f"group=GROUPS[{', '.join(map(str, self.group))},]"
        op = f"dist.ReduceOp.{self.reduction.upper()}"
        taken = [self.takes[slot] for slot in sorted(self.takes, key=_number)]
        made = [self.gives[slot] for slot in sorted(self.gives, key=_number)]
        name, first = made[0], f"{taken[0]}.contiguous()"
        shape = next(iter(self.shapes.values()))
        room = f"{name} = {taken[0]}.new_empty({shape})"
        match self.kind:
            case Collective.ALL_REDUCE:
                return [f"{name} = {taken[0]}.clone()", f"dist.all_reduce({name}, {op}, {group})"]
            case Collective.REDUCE:
                to = f"dst={self.group[self.root]}"
                return [f"{name} = {taken[0]}.clone()", f"dist.reduce({name}, {to}, {op}, {group})"]
            case Collective.BROADCAST:
                by = f"src={self.group[self.root]}"
                return [f"{name} = {taken[0]}.clone()", f"dist.broadcast({name}, {by}, {group})"]
            case Collective.ALL_GATHER if len(made) == 1:
                return [room, f"dist.all_gather_into_tensor({name}, {first}, {group})"]
            case Collective.ALL_GATHER:
                return [
                    f"{name}_all = [torch.empty_like({taken[0]}) for _ in range({len(made)})]",
                    f"dist.all_gather({name}_all, {first}, {group})",
                    f"{', '.join(made)} = {name}_all",
                ]
            case Collective.REDUCE_SCATTER if len(taken) == 1:
                return [room, f"dist.reduce_scatter_tensor({name}, {first}, {op}, {group})"]
            case Collective.REDUCE_SCATTER:
                return [room, f"dist.reduce_scatter({name}, [{', '.join(taken)}], {op}, {group})"]
            case Collective.ALL_TO_ALL if len(taken) == 1:
                sizes = [
                    f"{word}={list(self.sizes(word))}"
                    for word in ("output_split_sizes", "input_split_sizes")
                    if self.sizes(word)
                ]
                rest = ", ".join([name, first, *sizes, group])
                return [room, f"dist.all_to_all_single({rest})"]
        raise Unreplayable(f"{self.call.op} is given a list of tensors, which gloo does not take")


def _number(slot: str) -> int:
    return int(Slot(slot).name or 0)


@dataclass(frozen=True, slots=True)
class RanksCode:
    """The same region of each rank's program."""

    regions: Mapping[int, CodeRegion]

    @property
    def texts(self) -> dict[tuple[str, ...], list[int]]:
        """Each function that has to be written, and the ranks that run it."""
        found: dict[tuple[str, ...], list[int]] = {}
        for rank, region in self.regions.items():
            found.setdefault((", ".join(region.inputs), *region.lines), []).append(rank)
        return found

    @property
    def lines(self) -> list[str]:
        """The body of the first rank's function."""
        return self.regions[min(self.regions)].lines

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """The groups of ranks that its collectives need."""
        return list(dict.fromkeys(each.group for each in self._collectives()))

    @property
    def num_calls(self) -> int:
        """Of the rank that makes most."""
        return max(len(region.statements) for region in self.regions.values())

    def _collectives(self) -> Iterator[CollectiveStatement]:
        for region in self.regions.values():
            for each in region.statements:
                if isinstance(each, CollectiveStatement):
                    yield each

    def with_number(self, old: int, new: int) -> RanksCode:
        """The same with another number wherever `old` stands among arguments and shapes."""
        return RanksCode({rank: r.with_number(old, new) for rank, r in self.regions.items()})

    def run(self, values: Mapping[str, Tensor]) -> Tensor:
        """What one rank alone gives is not asked for."""
        del values
        raise Unreplayable("several ranks run it together")

    def run_on_ranks(self, values: ValuesByRank) -> dict[int, Tensor]:
        """What each rank gets, in float64: all run until they wait for each other."""
        known = {rank: dict(values[rank]) for rank in self.regions}
        left = {rank: list(region.statements) for rank, region in self.regions.items()}
        while any(left.values()):
            for rank, waiting in left.items():
                while waiting and not isinstance(waiting[0], CollectiveStatement):
                    known[rank] |= waiting.pop(0).run(known[rank])
            _deliver(left, known)
        return {rank: known[rank][region.output] for rank, region in self.regions.items()}


def _deliver(left: Mapping[int, list[Any]], known: Mapping[int, dict[str, Tensor]]) -> None:
    """Run the collectives that all ranks of a group have come to."""
    here = {rank: waiting[0] for rank, waiting in left.items() if waiting}
    if not here:
        return
    ready = [
        group
        for group in dict.fromkeys(each.group for each in here.values())
        if all(r in here and here[r].group == group for r in group)
    ]
    if not ready:
        raise Unreplayable("the ranks wait for each other in what was cut out")
    for group in ready:
        given = {
            f"{place} {slot}": tensor_of(known[rank][name])
            for place, rank in enumerate(group)
            for slot, name in sorted(here[rank].takes.items(), key=lambda each: _number(each[0]))
        }
        cuts = tuple(here[rank].sizes("input_split_sizes") for rank in group)
        for rank in group:
            for slot, name in here[rank].gives.items():
                got = here[rank].delivery(rank, slot, cuts).run(given)
                known[rank][name] = got["output.0"]
            left[rank].pop(0)


@dataclass(frozen=True, slots=True)
class Join:
    """How the values of all ranks become one: stacked, added up, or laid side by side."""

    dim: int | None = None  # that they lie along
    num_pieces: int = 1  # of that dim, each of them cut over the ranks
    adds: bool = False

    @property
    def code(self) -> str:
        """The same of a list called `parts`."""
        if self.dim is None:
            return "torch.stack(parts).sum(0)" if self.adds else "torch.stack(parts)"
        if self.num_pieces == 1:
            return f"torch.cat(parts, {self.dim})"
        piece = f"part.chunk({self.num_pieces}, {self.dim})[i]"
        each = f"{piece} for i in range({self.num_pieces}) for part in parts"
        return f"torch.cat([{each}], {self.dim})"

    def of(self, parts: Sequence[Tensor]) -> Tensor:
        """The one value that `parts` are."""
        if self.dim is None:
            if len({part.shape for part in parts}) > 1:
                raise Unreplayable("the ranks hold values of several shapes")
            whole = torch.stack(list(parts))
            return whole.sum(0) if self.adds else whole
        cut = [part.chunk(self.num_pieces, self.dim) for part in parts]
        return torch.cat([each[i] for i in range(self.num_pieces) for each in cut], self.dim)

    @property
    def is_of_replicas(self) -> bool:
        """Whether each rank has the whole."""
        return self.dim is None and not self.adds


def join_of(note: str) -> Join | None:
    """The way that a row's note on its layout tells, if it is one of these."""
    said = re.search(r"'([^']*)'", note)
    if said is None:
        return Join() if note.startswith(("the same on", "compared rank by rank")) else None
    layout = parse_layout(said[1])
    cut = [(n, dim) for n, dim in enumerate(layout.dims) if dim.placements]
    modes = {each.mode for each in layout.over} - {Mode.REPLICATED}
    if layout.divided_by or len(layout.axes) > 1:
        return None
    if not cut:
        is_sum = modes == {Mode.PARTIAL} and layout.over[0].reduction is ReduceOp.SUM
        return Join() if not modes else Join(adds=True) if is_sum else None
    (place, dim), *others = cut
    if others or modes or len(dim.placements) > 1:
        return None
    mode = dim.placements[0].mode
    if mode is Mode.INTERLEAVED and dim.size is None:
        return Join(place, len(dim.names))
    return Join(place) if mode is Mode.SHARD and len(dim.names) == 1 else None
