"""The backward pass of a run on several ranks: what calls hand back, and what ranks make of it.

What they make of it is often not on record: an optimizer's bucket, a hook, a sharded parameter.
Then it is found from the values: a gradient is its own rank's, the sum or the mean over ranks, or
a part of that. What is none of these stays open.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import AFTER
from dumpcmp.nouns.record import Call, Kept, Phase
from dumpcmp.nouns.replay import Replay
from dumpcmp.replay.holding import hold
from dumpcmp.replay.rating import Rerun
from dumpcmp.shadows.copied_values import ways_to_cut
from dumpcmp.shadows.gradient_sums import (
    GradientSum,
    LoadRecorded,
    OpenGradient,
    gradient_effects,
    gradient_node,
    gradient_nodes,
    hands_back,
)
from dumpcmp.shadows.kept_gradients import so_far
from dumpcmp.shadows.program import (
    Node,
    OwnOperation,
    Program,
    RatedOperation,
    StepEffect,
    ValueId,
)
from dumpcmp.shadows.quantities import tensor_of
from dumpcmp.shadows.region_gradients import Regions
from dumpcmp.shadows.shared_tables import SharedLookup
from dumpcmp.shadows.shared_terms import SharedTerm
from dumpcmp.shadows.together import RankDelivery, in_order_of_use

_OUTPUT = "output.0"
_INSIDE = "> "  # between a slot, and an input of what stands in it
_UNKNOWN = "what the ranks made of this gradient together is not on record"


class RankReduction(StrEnum):
    """What ranks make of what each of them has of a gradient."""

    OWN = "own"  # nothing: each keeps what its calls hand back
    SUM = "sum"
    MEAN = "mean"
    JOINED = "joined"  # one after the other


class GradientPart(NamedTuple):
    """A part of a gradient along one dim, as a rank keeps it."""

    dim: int
    first: int
    length: int


@dataclass(frozen=True, slots=True)
class ReducedGradient:
    """A gradient that ranks have reduced. Inputs are named by the rank: ``1: 0 input.0``."""

    sums: tuple[tuple[int, OwnOperation], ...]  # what the calls of each rank hand back
    how: RankReduction
    part: GradientPart | None = None
    share: int = 1  # what they divide by besides: the number of microbatches

    @property
    def expression(self) -> Hashable:
        asked = tuple((rank, one.expression) for rank, one in self.sums)
        return "reduced gradient", self.how, self.part, self.share, asked

    @property
    def slot(self) -> str:
        return self.sums[0][1].slot

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for _, one in self.sums for call in one.calls)

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradient in float64."""
        found = [one.run(self._of(rank, given))[_OUTPUT] for rank, one in self.sums]
        return {_OUTPUT: self._reduced(found)}

    def rated(self, given: Mapping[str, Tensor]) -> Rerun:
        """The gradient, and how well it is determined."""
        some = [_rated(one, self._of(rank, given)) for rank, one in self.sums]
        found = self._reduced([one.outputs[_OUTPUT] for one in some])
        sizes = [one.terms.get(_OUTPUT, one.outputs[_OUTPUT].abs()) for one in some]
        terms = self._reduced([size.to(found) for size in sizes])
        condition = float(terms.norm() / found.norm()) if float(found.norm()) else 1.0
        worst = max(one.condition.get(_OUTPUT, 1.0) for one in some)
        return Rerun(
            {_OUTPUT: found},
            {_OUTPUT: max(worst, condition)},
            {_OUTPUT: max(one.noise.get(_OUTPUT, 0.0) for one in some)},
            num_ops=sum(one.num_ops for one in some),
            terms={_OUTPUT: terms},
        )

    def level(self, given: Mapping[str, Tensor]) -> float:
        """The size of its terms, if nothing of them cancelled."""
        return float(self.rated(given).terms[_OUTPUT].abs().mean())

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay:
        """What was recorded, against that; it was found by its numbers, and so it is right.

        What each rank adds was rounded to the dtype that it computes in.
        """
        floats = [each.dtype for each in given.values() if each.is_floating_point()]
        coarsest = max([got.dtype, *floats], key=lambda dtype: torch.finfo(dtype).eps)
        got = got.to(coarsest)
        replay = hold(Rerun(self.run(given), num_ops=len(self.sums)), _OUTPUT, got)
        if replay.is_known and wrong(replay):
            replay = hold(self.rated(given), _OUTPUT, got)
        return Replay(unknown=_UNKNOWN) if replay.is_known and wrong(replay) else replay

    def _of(self, rank: int, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return _named_after(f"{rank}: ", given)

    def _reduced(self, found: Sequence[Tensor]) -> Tensor:
        if self.how is RankReduction.JOINED and self.part is not None:
            return torch.cat(list(found), self.part.dim)
        whole = torch.stack(list(found)).sum(0) / self.share
        if self.how is RankReduction.MEAN:
            whole = whole / len(found)
        return whole if self.part is None else whole.narrow(*self.part)


@dataclass(frozen=True, slots=True)
class ThroughCollectives:
    """A gradient that takes others which nobody recorded: those that collectives hand back.

    What these are made of is named by the slot that they stand in: ``0 grad_output.0> grad 0``.
    """

    own: OwnOperation
    inner: tuple[tuple[str, OwnOperation], ...]

    @property
    def expression(self) -> Hashable:
        return "through", self.own.expression, tuple((s, one.expression) for s, one in self.inner)

    @property
    def slot(self) -> str:
        return self.own.slot

    @property
    def calls(self) -> Sequence[Call]:
        return self.own.calls

    def run(self, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The gradient in float64."""
        return self.own.run(self._known(given))

    def rated(self, given: Mapping[str, Tensor]) -> Rerun:
        """The gradient, and how well it is determined."""
        return _rated(self.own, self._known(given))

    def level(self, given: Mapping[str, Tensor]) -> float:
        """The size of its terms, if nothing of them cancelled."""
        terms = self.rated(given).terms.get(_OUTPUT)
        return 0.0 if terms is None else float(terms.abs().mean())

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay | None:
        """What was recorded, against that."""
        return self.own.held(self._known(given), got)

    def _known(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {slot: each for slot, each in given.items() if _INSIDE not in slot}
        for slot, one in self.inner:
            prefix = f"{slot}{_INSIDE}"
            own = {
                s.removeprefix(prefix): each for s, each in given.items() if s.startswith(prefix)
            }
            found[slot] = one.run({s: tensor_of(each) for s, each in own.items()})[_OUTPUT]
        return found


def _composed(node: Node, handed: Mapping[ValueId, Node]) -> Node:
    """`node`, with what makes the gradients that nobody recorded inside of it."""
    inner = [(slot, value) for slot, value in node.takes.items() if value in handed]
    if not inner or node.own is None:
        return node
    takes = {slot: value for slot, value in node.takes.items() if value not in handed}
    operations: list[tuple[str, OwnOperation]] = []
    for slot, value in inner:
        maker = _composed(handed[value], handed)
        assert maker.own is not None
        operations.append((slot, maker.own))
        takes |= {f"{slot}{_INSIDE}{name}": each for name, each in maker.takes.items()}
    return replace(node, takes=takes, own=ThroughCollectives(node.own, tuple(operations)))


def with_rank_gradients(program: Program, load: LoadRecorded) -> Program:
    """`program` with a node for each gradient whose making is known, on each rank."""
    program, handed = _Handing(_as_given(program), load).through_collectives()
    relating = _Relating(program, load, handed)
    made = [_composed(node, handed) for node in relating.nodes()]
    effects = [*program.effects, *_of_ranks(program)]
    whole = replace(program, nodes=[*program.nodes, *made], effects=effects)
    plain = [node for node in made if isinstance(node.own, (GradientSum, ThroughCollectives))]
    return (
        in_order_of_use(whole)
        or in_order_of_use(replace(whole, nodes=[*program.nodes, *plain]))
        or program
    )


def _as_given(program: Program) -> Program:
    """`program`, in which gradients are what collectives gave that has their bytes."""
    given = {
        (value.rank, program.records[value].digest, program.records[value].shape): value
        for node in program.nodes
        if isinstance(node.own, RankDelivery)
        for value in node.gives.values()
    }
    found = {
        gradient: other
        for gradient in program.gradients.values()
        if gradient in program.records and gradient not in program.producers
        and (record := program.records[gradient]).digest
        and (other := given.get((gradient.rank, record.digest, record.shape))) is not None
    }  # fmt: skip
    return replace(
        program,
        gradients={value: found.get(each, each) for value, each in program.gradients.items()},
        places={**program.places, **found},
    )


def _of_ranks(program: Program) -> Iterator[StepEffect]:
    """The gradients of weights, as the program's own reductions after the backward pass left them.

    What a rank hands back for its inputs may be of its own share.
    """
    for effect in gradient_effects(program):
        if effect.leaf is not None and effect.leaf.key.slot.is_weight:
            value = effect.value
            while (after := _reduced_after(program, value)) is not None:
                value = after
            yield replace(effect, value=value)


def _reduced_after(program: Program, value: ValueId) -> ValueId | None:
    """What a collective after the backward pass made of a gradient, in its place."""
    for node in program.consumers.get(value, ()):
        is_after = isinstance(node.own, RankDelivery) and AFTER in node.call.op
        if is_after and node.rank == value.rank:
            return next(iter(node.gives.values()))
    return None


@dataclass(frozen=True, slots=True)
class RecordedSum:
    """A gradient that ops of the backward pass gave as it is, as every rank recorded it."""

    slot: str
    calls: tuple[Call, ...] = ()

    @property
    def expression(self) -> Hashable:
        return ("recorded sum",)

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same elements."""
        return {_OUTPUT: given["value 0"]}

    def held(self, given: Mapping[str, Tensor], got: Tensor) -> Replay:
        """What was recorded, against that."""
        return hold(Rerun({_OUTPUT: tensor_of(given["value 0"])}), _OUTPUT, got)


def _named_after(prefix: str, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {s.removeprefix(prefix): each for s, each in given.items() if s.startswith(prefix)}


def _rated(one: OwnOperation, given: Mapping[str, Tensor]) -> Rerun:
    return one.rated(given) if isinstance(one, RatedOperation) else Rerun(dict(one.run(given)))


@dataclass(eq=False)
class _Handing:
    """Finds gradients that nobody recorded: of what calls gave to collectives.

    A collective hands them back as they are, or adds up those of all ranks: what follows tells.
    """

    program: Program
    load: LoadRecorded

    def through_collectives(self) -> tuple[Program, dict[ValueId, Node]]:
        """The program with those gradients, and the nodes that make them."""
        handed: dict[ValueId, Node] = {}
        nodes = list(self.program.nodes)
        places = {node: at for at, node in enumerate(nodes)}
        records = dict(self.program.records)
        for node in reversed(self.program.nodes):
            value = node.gives.get(_OUTPUT)
            is_open = node.own is None and value is not None and self._has_gradients_before(node)
            if not is_open or value in self._gradients or value is None:
                continue
            for how in (RankReduction.OWN, RankReduction.SUM):
                made = self._handed(node, value, how)
                if made is None:
                    break
                ((_, gradient),) = made.gives.items()
                gradients = {**node.gradients, "grad_output.0": gradient}
                known = replace(node, gradients=gradients)
                records[gradient] = replace(records[value], key=gradient.key, digest="")
                if self._is_right(known, {**handed, gradient: made}):
                    handed[gradient] = made
                    nodes[places[node]] = known
                    break
        return replace(self.program, nodes=nodes, records=records), handed

    def _has_gradients_before(self, node: Node) -> bool:
        return any(slot.startswith("grad_input") for slot in node.gradients) or any(
            value in self._gradients for value in node.takes.values()
        )

    @cached_property
    def _gradients(self) -> dict[ValueId, ValueId]:
        return gradients_of_values(self.program)

    def _handed(self, node: Node, value: ValueId, how: RankReduction) -> Node | None:
        """The gradient of a value by all that was made of it, on its own rank or on all."""
        gradient = ValueId(node.rank, node.call.site.key("grad_output.0"))
        self._regions.gradients = {**self._gradients, value: gradient}
        is_own = how is RankReduction.OWN
        known = set(self._gradients.values())
        made = self._regions.node(value, known, "grad_output.0", on_own_rank=is_own)
        return None if made is None else made[1]

    @cached_property
    def _regions(self) -> Regions:
        return Regions(self.program, self._gradients)

    def _is_right(self, node: Node, handed: Mapping[ValueId, Node]) -> bool:
        """Whether what the call hands back with this gradient is what was recorded."""
        for slot, value in node.takes.items():
            gradient = node.gradients.get(f"grad_{slot}") or self._gradients.get(value)
            if gradient is None:
                continue
            alone = gradient_node(gradient, [(0, node, slot)])
            load = loading(self.load, handed)
            if hands_back(alone, gradient, load):
                return True
        return False


def gradients_of_values(program: Program) -> dict[ValueId, ValueId]:
    """The gradient of each value that has one."""
    found = dict(program.gradients)
    for node in program.nodes:
        for slot, value in (*node.gives.items(), *node.takes.items()):
            gradient = node.gradients.get(f"grad_{slot}")
            if gradient is not None:
                found.setdefault(value, gradient)
    return found


def loading(load: LoadRecorded, handed: Mapping[ValueId, Node]) -> LoadRecorded:
    """Reads recorded values, and computes those that nobody recorded."""

    def loaded(value: ValueId) -> Tensor:
        node = handed.get(value)
        if node is None:
            return load(value)
        assert node.own is not None
        given = {slot: tensor_of(loaded(each)) for slot, each in node.takes.items()}
        return node.own.run(given)[_OUTPUT]

    return loaded


@dataclass(eq=False)
class _Relating:
    """Finds how each recorded gradient follows from what calls hand back."""

    program: Program
    recorded: LoadRecorded
    handed: Mapping[ValueId, Node]  # gradients that nobody recorded
    _handed_on: set[ValueId] = field(default_factory=set)  # what collectives took, as it is made

    @cached_property
    def load(self) -> LoadRecorded:
        return loading(self.recorded, self.handed)

    def nodes(self) -> Iterator[Node]:
        """A node for each gradient: by the first way to make it that gives what is recorded."""
        for gradient in dict.fromkeys((*self._locals, *self._known)):
            if gradient in self.program.producers:
                yield from self._handed_over(gradient)
        done = self.program.producers.keys() | self.handed.keys()
        values: dict[ValueId, list[ValueId]] = {}
        for value, gradient in self._regions.gradients.items():
            values.setdefault(gradient, []).append(value)
        for gradient in dict.fromkeys((*self._locals, *values)):
            if gradient not in done:
                yield from self._made(gradient, values.get(gradient, ()))

    def _made(self, gradient: ValueId, values: Sequence[ValueId]) -> Iterator[Node]:
        local = self._locals.get(gradient)
        for made in self._ways(gradient, local, values):
            if self._is_right(made, gradient):
                yield made
                return
        is_given = any(value in self._returned for value in values)  # by a loss, from outside
        if local is not None and not is_given:
            own = OpenGradient(_slot(local), _UNKNOWN)
            yield Node(gradient.rank, local.call, {}, {_OUTPUT: gradient}, own)

    def _ways(
        self, gradient: ValueId, local: Node | None, values: Sequence[ValueId]
    ) -> Iterator[Node]:
        """How a gradient may have been made, the plainest first.

        Where several values have it, those before the last have it from that one.
        """
        orders = {value: self.program.records[value].order for value in values}
        last = max(orders.values(), default=-1)
        if local is not None and min(call.order for call in _calls(local)) >= last:
            yield from self._by_calls(gradient, local)
            yield from self._by_earlier(gradient, local)
        for value in (value for value in values if orders[value] == last):
            yield from self._by_regions(value, gradient)
            yield from self._by_recorded_ops(value, gradient)

    def _by_regions(self, value: ValueId, gradient: ValueId) -> Iterator[Node]:
        """What all that was made of a value hands back, on one rank or several."""
        own = self._region(value, gradient)
        if own is None:
            return
        yield own
        for group in self._groups(value.rank):
            some = [self._region(other, gradient) for other in self._named_alike(value, group)]
            if len(some) > 1 and None not in some:
                yield from self._reductions(gradient, own, [one for one in some if one])
        if (across := self._region(value, gradient, on_own_rank=False)) is not None:
            yield across

    def _by_recorded_ops(self, value: ValueId, gradient: ValueId) -> Iterator[Node]:
        """What ranks may have made of what an op of the backward pass gave for a weight."""
        shape = self.program.records[gradient].shape
        for made in self._backward_outputs.get((value.rank, value.key.op), ()):
            whole = self.program.records[made].shape
            if shape != whole and not any(True for _ in _parts(whole, shape)):
                continue
            for group in self._groups(value.rank):
                some = [ValueId(rank, made.key) for rank in group]
                if all(each in self.program.producers for each in some):
                    nodes = [self._as_recorded(each, gradient) for each in some]
                    own = next(node for node in nodes if node.rank == value.rank)
                    yield from self._reductions(gradient, own, nodes)

    def _as_recorded(self, value: ValueId, gradient: ValueId) -> Node:
        call, own = (
            self.program.producers[value].call,
            RecordedSum(f"grad.{gradient.key.slot.name}"),
        )
        return Node(value.rank, call, {"value 0": value}, {_OUTPUT: gradient}, own)

    @cached_property
    def _backward_outputs(self) -> dict[tuple[int, str], list[ValueId]]:
        """What ops of the backward pass gave, by rank and module."""
        found: dict[tuple[int, str], list[ValueId]] = {}
        for node in self.program.nodes:
            if node.call.phase is Phase.BACKWARD and node.own is None:
                values = found.setdefault((node.rank, node.call.op.module), [])
                values += node.gives.values()
        return found

    def _by_calls(self, gradient: ValueId, local: Node) -> Iterator[Node]:
        yield local
        shares = dict.fromkeys((1, self.program.num_parts))
        for share in shares:
            if share > 1:
                yield _reduced(gradient, [local], RankReduction.OWN, None, share)
            for group in self._groups(gradient.rank):
                some = self._of_ranks(gradient, local, group)
                for size in (1, *self._sizes_inside(group)):
                    yield from self._reductions(gradient, local, some, share * size)

    def _by_earlier(self, gradient: ValueId, local: Node) -> Iterator[Node]:
        """What calls hand back, added to what the step before had left."""
        other = so_far(self.program, local)
        if other is None:
            return
        yield other
        for group in self._groups(gradient.rank):
            some = [so_far(self.program, each) for each in self._of_ranks(gradient, local, group)]
            known = [each for each in some if each is not None]
            for how in (RankReduction.MEAN, RankReduction.SUM):
                yield _reduced(gradient, known, how, None)

    def _region(
        self, value: ValueId, gradient: ValueId, *, on_own_rank: bool = True
    ) -> Node | None:
        """What all that was made of a value hands back."""
        known = self._known - {gradient, self._regions.gradients[value]}
        made = self._regions.node(value, known, "grad_output.0", on_own_rank=on_own_rank)
        return None if made is None else made[1]

    @cached_property
    def _returned(self) -> set[ValueId]:
        return {effect.value for effect in self.program.effects}

    @cached_property
    def _regions(self) -> Regions:
        return Regions(self.program, gradients_of_values(self.program))

    @cached_property
    def _known(self) -> set[ValueId]:
        return set(self._regions.gradients.values())

    def _groups(self, rank: int) -> list[tuple[int, ...]]:
        """The groups of ranks that do something together, of which `rank` is one, larger first."""
        return [group for group in self._all_groups if rank in group]

    def _sizes_inside(self, group: Sequence[int]) -> list[int]:
        """The sizes of groups inside of one: ranks may take a mean along one axis, then a sum."""
        return [size for size in dict.fromkeys(map(len, self._all_groups)) if size < len(group)]

    @cached_property
    def _all_groups(self) -> list[tuple[int, ...]]:
        found = {tuple(sorted(self.program.ranks)): None}
        for node in self.program.nodes:
            if isinstance(node.own, RankDelivery):
                found[tuple(sorted({value.rank for value in node.takes.values()}))] = None
        return sorted((group for group in found if len(group) > 1), key=len, reverse=True)

    def _named_alike(self, value: ValueId, group: Sequence[int]) -> list[ValueId]:
        """The values of this name on some ranks, as far as they have gradients."""
        named = (ValueId(rank, value.key) for rank in group)
        return [each for each in named if each in self._regions.gradients]

    @cached_property
    def _locals(self) -> dict[ValueId, Node]:
        """What the calls of its own rank hand back for each value with a gradient."""
        found = {g: node for node in gradient_nodes(self.program) for g in node.gives.values()}
        for weight, gradient in self.program.gradients.items():
            if gradient not in found and weight.key.slot.is_weight:
                takers = list(self._takers(weight))
                local = gradient_node(gradient, takers) if takers else self._of_whole(weight)
                if local is not None:
                    found[gradient] = local
        return found

    def _of_whole(self, weight: ValueId) -> Node | None:
        """What all that was made of the parts of a weight, put together, hands back."""
        gradient = self.program.gradients[weight]
        for value in self._gathered.get(weight, ()):
            made = self._regions.node(value, self._known, "grad_output.0", gradient=gradient)
            if made is not None:
                return made[1]
        return None

    def _takers(self, weight: ValueId) -> Iterator[tuple[int, Node, str]]:
        """The calls that take a weight, or what was put together of its parts on all ranks."""
        names = {weight, *self._gathered.get(weight, ())}
        for place, node in enumerate(self.program.nodes):
            is_known = any(slot.startswith("grad_output") for slot in node.gradients)
            for slot, value in node.takes.items() if is_known else ():
                if value in names and node.rank == weight.rank and _takes_weights(node):
                    yield place, node, slot

    @cached_property
    def _gathered(self) -> dict[ValueId, list[ValueId]]:
        """Of weights that a rank has a part of: the wholes that its module's calls took."""
        found: dict[ValueId, list[ValueId]] = {}
        by_module: dict[tuple[int, str], dict[ValueId, None]] = {}
        for node in self.program.nodes:
            for slot, value in node.takes.items():
                if slot.startswith("input") and (
                    _takes_weights(node) or isinstance(node.own, SharedLookup)
                ):
                    by_module.setdefault((node.rank, node.call.op.module), {})[value] = None
        for weight in self.program.gradients:
            record = self.program.records.get(weight)
            if record is None or not weight.key.slot.is_weight or not record.layout:
                continue
            names = {weight.key.op, *(at.key.op for at in self.program.slots_of.get(weight, ()))}
            taken = (v for name in names for v in by_module.get((weight.rank, name), ()))
            for value in dict.fromkeys(taken):
                if value != weight and self._is_part(weight, value):
                    found.setdefault(weight, []).append(value)
        return found

    def _is_part(self, weight: ValueId, value: ValueId) -> bool:
        part, whole = self.program.records[weight], self.program.records[value]
        try:
            held, own = self.load(value), self.load(weight)
            return any(
                torch.equal(held.narrow(*at), own.to(held.dtype))
                for at in _parts(whole.shape, part.shape)
            )
        except DumpcmpError:
            return False

    def _handed_over(self, gradient: ValueId) -> Iterator[Node]:
        """What a recorded collective took to make a gradient of.

        That is a part of another gradient of its rank, or what the calls of the rank hand back.
        """
        for value in dict.fromkeys(self.program.producers[gradient].takes.values()):
            if value.rank != gradient.rank or value in self.program.producers:
                continue
            if value in self._locals or value in self._handed_on:
                continue
            local = self._locals.get(gradient)
            if local is not None and self._is_right(local, value):
                self._handed_on.add(value)
                yield replace(local, gives={_OUTPUT: value})
            elif (made := self._part_of_gradient(value)) is not None:
                self._handed_on.add(value)
                yield made

    def _part_of_gradient(self, value: ValueId) -> Node | None:
        """The node that makes `value` of a recorded gradient of its rank, by its bytes."""
        record = self.program.records[value]
        for gradient in self._known:
            if gradient.rank != value.rank or gradient in self.handed:
                continue
            source = self.program.records[gradient]
            if source.dtype != record.dtype or source.kept is not Kept.FULL:
                continue
            for own in ways_to_cut(source.shape, record.shape, "input.0"):
                try:
                    made = own.run({"input.0": self.load(gradient)})[_OUTPUT]
                    if torch.equal(made, self.load(value)):
                        call = self.program.consumers[value][0].call
                        takes = {"input.0": gradient}
                        return Node(value.rank, call, takes, {_OUTPUT: value}, own)
                except DumpcmpError:
                    break
        return None

    def _reductions(
        self, gradient: ValueId, local: Node, some: Sequence[Node], share: int = 1
    ) -> Iterator[Node]:
        """What ranks may have made of what calls hand back on each of them."""
        shape, whole = self.program.records[gradient].shape, self._shape_of(local)
        if shape == whole:
            for how in (RankReduction.MEAN, RankReduction.SUM):
                yield _reduced(gradient, some, how, None, share)
        for part in _parts(whole, shape):
            yield _reduced(gradient, [local], RankReduction.OWN, part, share)
            for how in (RankReduction.MEAN, RankReduction.SUM):
                yield _reduced(gradient, some, how, part, share)
        for part in _parts(shape, whole):
            yield _reduced(gradient, some, RankReduction.JOINED, part._replace(first=0), share)
            break

    def _of_ranks(self, gradient: ValueId, local: Node, group: Sequence[int]) -> list[Node]:
        """What the calls of each of these ranks hand back for the value of this name."""
        weight = next((w for w, g in self.program.gradients.items() if g == gradient), None)
        found = []
        for rank in group:
            named = ValueId(rank, gradient.key)
            if weight is not None:
                there = self.program.gradients.get(ValueId(rank, weight.key))
                named = there if there is not None else named
            node = self._locals.get(named)
            found += [node] if node is not None else []
        return found or [local]

    def _shape_of(self, local: Node) -> tuple[int, ...]:
        """The shape of what calls hand back: that of the value whose gradient it is."""
        if isinstance(local.own, GradientSum):
            number, slot = local.own.leaves[0]
            return self.program.records[local.takes[f"{number} {slot}"]].shape
        return self.program.records[local.takes["value 0"]].shape

    def _is_right(self, node: Node, gradient: ValueId) -> bool:
        return hands_back(node, gradient, self.load)


def _reduced(
    gradient: ValueId,
    nodes: Sequence[Node],
    how: RankReduction,
    part: GradientPart | None,
    share: int = 1,
) -> Node:
    sums = []
    takes: dict[str, ValueId] = {}
    for node in nodes:
        assert node.own is not None
        sums.append((node.rank, node.own))
        takes |= {f"{node.rank}: {slot}": value for slot, value in node.takes.items()}
    own = ReducedGradient(tuple(sums), how, part, share)
    mine = next((node for node in nodes if node.rank == gradient.rank), nodes[0])
    return Node(gradient.rank, mine.call, takes, {_OUTPUT: gradient}, own)


def _takes_weights(node: Node) -> bool:
    """Whether a call takes weights as it was recorded, but for what ranks share of its result."""
    return node.own is None or isinstance(node.own, SharedTerm)


def _calls(node: Node) -> Sequence[Call]:
    return node.own.calls if node.own is not None else (node.call,)


def _slot(node: Node) -> str:
    return node.own.slot if node.own is not None else ""


def _parts(whole: tuple[int, ...], part: tuple[int, ...]) -> Iterator[GradientPart]:
    """The parts of one shape that a value of another shape has along a dim."""
    if len(whole) != len(part):
        return
    unequal = [d for d, sizes in enumerate(zip(whole, part, strict=True)) if len({*sizes}) > 1]
    if len(unequal) != 1 or not part[unequal[0]]:
        return
    (dim,) = unequal
    last = whole[dim] - part[dim]
    for first in dict.fromkeys((*range(0, last + 1, part[dim]), last)):  # which may be shorter
        if first >= 0:
            yield GradientPart(dim, first, part[dim])
