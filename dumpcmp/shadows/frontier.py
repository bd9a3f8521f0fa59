"""Where two programs part: the first calls that make what the other program never has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.op_names import plain_name
from dumpcmp.replay.arguments import read_arguments
from dumpcmp.replay.inner_values import INNER_VALUES
from dumpcmp.shadows.fingerprints import (
    Fingerprint,
    PrintIndex,
    fingerprint,
    is_telling,
    same_elements,
)
from dumpcmp.shadows.program import Node, ValueId
from dumpcmp.shadows.quantities import Application, Quantity
from dumpcmp.shadows.rewritten_memory import RewrittenMemory
from dumpcmp.shadows.shadow import Shadow, identity
from dumpcmp.shadows.slices import Marginals, is_covered, is_permuted_dims

MOST_GRAFTS = 64


@dataclass(eq=False)
class KnownQuantities:
    """All quantities of one run, by identity and by their numbers."""

    shadow: Shadow
    in_any_order: bool = True  # whether elements in another order of dims are the same quantity
    _own: set[int] = field(init=False)
    _prints: PrintIndex[Quantity] = field(init=False)
    _answers: dict[int, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        every = {id(each): each for each in self.shadow.quantities.values()}
        every |= {id(each): each for each in self._weights()}
        self._own, self._prints = set(every), PrintIndex()
        every |= {id(each): each for each in self._inner()}
        for each in every.values():
            try:
                self._prints.add(each.print, each)
            except DumpcmpError:
                continue  # it has no numbers, so nothing is known by it

    def _weights(self) -> Iterator[Quantity]:
        """What the run started from, whether anything uses it or not."""
        for value in self.shadow.program.places.values():
            if value.key.slot.is_weight and value not in self.shadow.quantities:
                record = self.shadow.record(value)
                yield self.shadow.book.leaf(identity(record), self.shadow.loader(value))

    def _inner(self) -> Iterator[Quantity]:
        """What composites go through: another program may have it as a value of its own."""
        for node in self.shadow.program.nodes:
            if node.own is None and plain_name(node.call.target) in INNER_VALUES:
                try:
                    given = {s: self.shadow.quantity(v).tensor for s, v in node.takes.items()}
                    told = read_arguments(node.call.arguments, given)
                    made = INNER_VALUES[node.call.target](*told.args, **told.kwargs)
                    yield from [Quantity(_tensor=each) for each in made]
                except (DumpcmpError, RuntimeError, TypeError):
                    continue  # of this form of it nothing more is known than before

    def like(self, quantity: Quantity) -> list[Quantity]:
        """What the run has of the same elements, in whatever order."""
        try:
            return [each for _, each in self._prints.near(quantity.print)]
        except DumpcmpError:
            return []

    def has(self, quantity: Quantity) -> bool:
        """Whether the run has this quantity, in any shape and order of dims."""
        if id(quantity) in self._own:
            return True
        if id(quantity) not in self._answers:
            try:
                self._answers[id(quantity)] = self._finds(quantity)
            except DumpcmpError:
                self._answers[id(quantity)] = False
        return self._answers[id(quantity)]

    def _finds(self, quantity: Quantity) -> bool:
        if not quantity.is_telling:
            return True
        near = list(self._prints.near(quantity.print))
        if any(each.is_same(quantity.print) for each, _ in near):
            return True
        return self.in_any_order and any(is_permuted_dims(quantity, each) for _, each in near)

    def has_sum(self, terms: Sequence[Quantity], divisor: int = 1) -> bool:
        """Whether the run has what terms add up to, element by element, over `divisor`."""
        try:
            if len({each.tensor.shape for each in terms}) != 1:
                return False
            total = torch.stack([each.tensor for each in terms]).sum(0) / divisor
            found = fingerprint(total)
            near = [each for _, each in self._prints.near(found)] if is_telling(total) else []
            return any(same_elements(total, each.tensor) for each in near)
        except DumpcmpError:
            return False

    def is_own(self, quantity: Quantity) -> bool:
        """Whether the run asks for just this."""
        return id(quantity) in self._own

    def has_bytes(self, digest: str) -> bool:
        """Whether the run recorded these bytes, though nothing may have used them."""
        return bool(digest) and digest in self._digests

    @cached_property
    def _digests(self) -> set[str]:
        program = self.shadow.program
        return {record.digest for record in program.records.values() if record.digest}

    def has_in_slices(self, quantity: Quantity) -> bool:
        """Whether it is a slice of what the run has, or all of its slices are: a long search."""
        try:
            found = (
                self._is_slice(quantity.print)
                or self._is_joined(quantity)
                or self._is_selected(quantity)
            )
        except DumpcmpError:
            return False
        self._answers[id(quantity)] = found
        return found

    def _is_slice(self, wanted: Fingerprint) -> bool:
        """Whether it is a slice of something that the run has."""
        for size, held in self._marginals.items():
            if size > wanted.numel and any(any(each.places_of(wanted)) for each in held):
                return True
        return False

    def _is_joined(self, quantity: Quantity) -> bool:
        """Whether all of its slices are something that the run has."""
        tensor = quantity.tensor
        parts = (each.print for each in self._telling if each.print.numel < tensor.numel())
        return is_covered(Marginals(tensor), parts)

    def _is_selected(self, quantity: Quantity) -> bool:
        """Whether it is indices of one dim of something that the run has, in whatever order."""
        part = Marginals(quantity.tensor)
        return any(
            part.is_selected_from(whole)
            for size, held in self._marginals.items()
            for whole in held
            if size > quantity.tensor.numel()
        )

    @cached_property
    def _telling(self) -> list[Quantity]:
        every = {id(each): each for each in self.shadow.quantities.values()}.values()
        return [each for each in every if not each.problem and each.is_telling]

    @cached_property
    def _marginals(self) -> dict[int, list[Marginals]]:
        found: dict[int, list[Marginals]] = {}
        for each in self._telling:
            found.setdefault(each.tensor.numel(), []).append(Marginals(each.tensor))
        return found


def frontier(shadow: Shadow, values: Iterable[ValueId], other: KnownQuantities) -> list[Node]:
    """Going back from `values` through what `other` lacks: the calls all of whose inputs it has."""
    shown = list(values)
    while True:
        found = _frontier(shadow, shown, other)
        made = [shadow.quantity(value) for node in found for value in node.gives.values()]
        lacking = [each for each in made if not other.has(each)]
        promoted = [each for each in lacking if other.in_any_order and other.has_in_slices(each)]
        if not promoted:
            return found


def _frontier(shadow: Shadow, values: Iterable[ValueId], other: KnownQuantities) -> list[Node]:
    found: list[Node] = []
    seen: set[ValueId] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        node = shadow.program.producers.get(value)
        if node is None or value in seen:
            continue
        seen.add(value)
        before = [each for each in node.takes.values() if _is_lacking(shadow, each, other)]
        made = [each for each in before if each in shadow.program.producers]
        waiting += made
        if not made and node not in found:
            found.append(node)
    terms = {node for node in found if _is_term(shadow, node)}
    return sorted(found, key=lambda node: (node in terms, node.call.order, node.rank))


def _is_lacking(shadow: Shadow, value: ValueId, other: KnownQuantities) -> bool:
    """Whether `other` lacks a value, or something that it is made of, where it tells nothing."""
    seen = {value}
    waiting = [value]
    while waiting:
        place = waiting.pop()
        quantity = shadow.quantity(place)
        if not other.has(quantity):
            return True
        if other.is_own(quantity) or quantity.problem or quantity.is_telling:
            continue
        node = shadow.program.producers.get(place)
        before = {each for each in node.takes.values() if each not in seen} if node else set()
        seen |= before
        waiting += sorted(before)
    return False


def _is_term(shadow: Shadow, node: Node) -> bool:
    """Whether ranks add up what it gives, so that golden need not have it."""
    takers = [t for value in node.gives.values() for t in shadow.program.consumers.get(value, ())]
    return any(is_together(taker) for taker in takers)


def is_together(node: Node) -> bool:
    """Whether it takes what several ranks gave."""
    return node.own is not None and len({value.rank for value in node.takes.values()}) > 1


def unknown_leaves(shadow: Shadow, node: Node, other: KnownQuantities) -> Iterator[str]:
    """Where `node` takes a leaf that is nothing of the other run's, nor a slice of it, by slot."""
    for slot, value in node.takes.items():
        quantity = shadow.quantity(value)
        is_lacking = value not in shadow.program.producers and not (
            other.has(quantity) or other.has_bytes(shadow.record(value).digest)
        )
        if is_lacking and quantity.is_telling and not other.has_in_slices(quantity):
            yield slot


@dataclass(frozen=True, slots=True)
class Guilt:
    """The call that makes the effects others, and what golden does in its place."""

    node: Node
    is_golden: bool = False  # it is a call of golden that the target lacks
    is_extra: bool = False  # golden has nothing in its place


def guilty(
    target: Shadow,
    known: KnownQuantities,
    ours: Collection[Node],
    theirs: Collection[Node],
    effects: Iterable[tuple[Quantity, Quantity]],
) -> Guilt | None:
    """The one call that explains why effects differ: with golden's value they are golden's.

    `ours` and `theirs` are golden's and the target's frontier, and `known` all that golden has;
    `effects` pairs golden's with the target's. None where no single call explains it.
    """
    wanted = list(effects)
    for found, moved in islice(_grafts(target, known, ours, theirs), MOST_GRAFTS):
        if _mends(moved, wanted):
            return found
    return None


Moved = Mapping[object, Quantity]  # by id of a quantity, or of an application and a slot of it


def _grafts(
    target: Shadow, known: KnownQuantities, ours: Collection[Node], theirs: Collection[Node]
) -> Iterator[tuple[Guilt, Moved]]:
    """What to try: golden's calls before the target's, nothing, and golden's in their place."""
    golden = known.shadow
    made = [(node, golden.quantity(value)) for node in ours for value in _left_by(golden, node)]
    for node in theirs:
        for value in node.gives.values():
            placed = target.quantity(value)
            for slot, each in _inputs_of(placed):
                for lacking, other in made:
                    if lacking.call.target != node.call.target:
                        yield (
                            Guilt(lacking, is_golden=True),
                            {(id(placed.application), slot): other},
                        )
                yield Guilt(node, is_extra=True), {id(placed): each}
            yield from _taken_otherwise(target, golden, ours, node, placed)
            for other in known.like(placed):
                yield Guilt(node), {id(placed): other}
            for _, other in made:
                yield Guilt(node), {id(placed): other}
    for lacking, other in made:  # all that takes what it took should take what it gives
        for value in lacking.takes.values():
            yield Guilt(lacking, is_golden=True), {id(golden.quantity(value)): other}


def _taken_otherwise(
    target: Shadow, golden: Shadow, ours: Collection[Node], node: Node, placed: Quantity
) -> Iterator[tuple[Guilt, Moved]]:
    """A call that both make, which takes what golden computed first and the target did not."""
    for other in golden.program.nodes:
        if (other.call.op, other.call.call) != (node.call.op, node.call.call):
            continue
        if other.own is not None or other.call.target != node.call.target:
            continue
        for slot, value in other.takes.items():
            wanted = golden.quantity(value)
            if slot not in node.takes or wanted is target.quantity(node.takes[slot]):
                continue
            behind = golden.program.behind([value])
            first = next((each for each in ours if each in behind), None)
            if first is not None:
                lacking = _first_that_computes(golden, first, behind)
                yield Guilt(lacking, is_golden=True), {(id(placed.application), slot): wanted}


def _first_that_computes(shadow: Shadow, first: Node, among: Collection[Node]) -> Node:
    """`first`, or what computes something of it first, where it only gives elements as they are."""
    after = set(first.gives.values())
    for node in shadow.program.nodes:
        if node is not first and (node not in among or after.isdisjoint(node.takes.values())):
            continue
        if not shadow.only_moves(node):
            return node
        after |= set(node.gives.values())
    return first


def _left_by(shadow: Shadow, node: Node) -> Iterator[ValueId]:
    """What a call gives, and the memory that it wrote to, as it is then."""
    yield from node.gives.values()
    for value in node.gives.values():
        for taker in shadow.program.consumers.get(value, ()):
            if isinstance(taker.own, RewrittenMemory):
                yield from taker.gives.values()


def _inputs_of(quantity: Quantity) -> Iterable[tuple[str, Quantity]]:
    return () if quantity.application is None else quantity.application.inputs.items()


def _mends(moved: Moved, effects: list[tuple[Quantity, Quantity]]) -> bool:
    try:
        return all(
            same_elements(golden.tensor, grafted(target, moved)) for golden, target in effects
        )
    except DumpcmpError:
        return False


def grafted(effect: Quantity, moved: Moved) -> Tensor:
    """What `effect` would be with other quantities in the places that `moved` names."""
    found: dict[int, Tensor] = {}
    waiting = [(effect, False)]
    while waiting:
        quantity, is_ready = waiting.pop()
        if id(quantity) in found:
            continue
        if id(quantity) in moved:
            found[id(quantity)] = _in_place_of(quantity, moved[id(quantity)])
            continue
        inputs = list(quantity.inputs)
        if not is_ready:
            waiting.append((quantity, True))
            waiting += [(each, False) for each in inputs]
            continue
        application = quantity.application
        if application is None or not _is_moved(application, found, moved):
            found[id(quantity)] = quantity.tensor
            continue
        given = {
            slot: _in_place_of(each, moved[id(application), slot])
            if (id(application), slot) in moved
            else found[id(each)]
            for slot, each in application.inputs.items()
        }
        for slot, tensor in application.apply(given).items():
            if slot in quantity.siblings:
                found.setdefault(id(quantity.siblings[slot]), tensor)
    return found[id(effect)]


def _is_moved(application: Application, found: Mapping[int, Tensor], moved: Moved) -> bool:
    return any(
        (id(application), slot) in moved or found[id(each)] is not each.tensor
        for slot, each in application.inputs.items()
    )


def _in_place_of(own: Quantity, other: Quantity) -> Tensor:
    """The numbers of `other` in the shape of `own`; DumpcmpError where they cannot be."""
    before, after = own.tensor, other.tensor
    if before.numel() != after.numel() or before.dtype != after.dtype:
        raise DumpcmpError("it has another number of elements")
    return after.reshape(before.shape)
