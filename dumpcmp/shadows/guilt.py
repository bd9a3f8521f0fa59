"""Which call explains why two programs part: with golden's value there, effects are golden's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key, Op
from dumpcmp.shadows.fingerprints import fingerprint, same_elements
from dumpcmp.shadows.known_values import KnownValues
from dumpcmp.shadows.program import Node, ValueId
from dumpcmp.shadows.quantities import Application, Quantity
from dumpcmp.shadows.rewritten_memory import RewrittenMemory
from dumpcmp.shadows.rows_index import laid_out_as
from dumpcmp.shadows.shadow import Shadow
from dumpcmp.shadows.slices import Marginals

MOST_GRAFTS = 128


@dataclass(frozen=True, slots=True)
class Guilt:
    """The call that makes the effects others, and what golden does in its place."""

    node: Node
    is_golden: bool = False  # it is a call of golden that the target lacks
    is_extra: bool = False  # golden has nothing in its place


Moved = Mapping[object, Quantity]  # by id of a quantity, or of an application and a slot of it


def guilty(
    target: Shadow,
    known: KnownValues,
    ours: Collection[Node],
    theirs: Collection[Node],
    effects: Iterable[tuple[Quantity, Quantity]],
) -> Guilt | None:
    """The one call that explains why effects differ: with golden's value they are golden's.

    `ours` and `theirs` are golden's and the target's frontier, and `known` all that golden has;
    `effects` pairs golden's with the target's. None where no single call explains it.
    """
    wanted = list(effects)
    for found, moved in islice(_Grafts(target, known, ours).all(theirs), MOST_GRAFTS):
        if _mends(moved, wanted):
            return found
    return None


def lacking_before(
    target: Shadow, node: Node, known: KnownValues, ours: Collection[Node]
) -> Node | None:
    """Golden's call that is left out before `node`: with its value there, `node` gives golden's.

    It tells of this place alone, where other faults keep effects from being golden's.
    """
    grafts = _Grafts(target, known, ours)
    for place in grafts._places([node]):
        wanted = grafts._named_alike(place)
        if wanted is None:
            continue
        for found, moved in islice(grafts.all([node]), MOST_GRAFTS):
            if found.is_golden and _mends(moved, [(wanted, place.quantities[0])]):
                return found.node
    return None


def calls_in_place(node: Node, golden: Shadow, target: Shadow) -> list[Node]:
    """Golden's call in whose place `node` is: of its module, and it takes the same.

    None where there are several, or where the target has that function there as well.
    """
    taken = _taken(target, node)
    theirs = {each.call.op.function for each in _beside(target, node, taken)}
    ours = [each for each in _beside(golden, node, taken) if each.call.op.function not in theirs]
    return ours if len(ours) == 1 else []


def _beside(shadow: Shadow, node: Node, taken: Collection[Quantity]) -> Iterator[Node]:
    """The calls of the module of `node` that take these quantities."""
    for each in shadow.program.nodes if taken else ():
        is_near = each.call.op.scope == node.call.op.scope and each.own is None
        if is_near and _taken(shadow, each) == taken:
            yield each


def _taken(shadow: Shadow, node: Node) -> list[Quantity]:
    return [shadow.quantity(value) for value in node.takes.values()]


@dataclass(frozen=True)
class _GuiltyPlace:
    """What one call gives, on each of the ranks of the target that make it otherwise."""

    nodes: Sequence[Node]
    slot: str
    quantities: Sequence[Quantity]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(each.tensor.shape) for each in self.quantities]

    def inputs(self) -> Iterator[tuple[str, list[Quantity]]]:
        """What the call takes, slot by slot, on all of these ranks."""
        made = [each.application for each in self.quantities]
        for slot in made[0].inputs if made[0] is not None else ():
            found = [one.inputs.get(slot) for one in made if one is not None]
            if len(found) == len(made) and None not in found:
                yield slot, [each for each in found if each is not None]


@dataclass(eq=False)
class _Grafts:
    """What to put in the place of what the target computes, in the order in which it is tried."""

    target: Shadow
    known: KnownValues  # all that golden has
    ours: Collection[Node]  # golden's calls that make what the target lacks first

    @property
    def golden(self) -> Shadow:
        return self.known.shadow

    def all(self, theirs: Collection[Node]) -> Iterator[tuple[Guilt, Moved]]:
        """Golden's calls before the target's, nothing, and golden's in their place."""
        made = [
            (node, self.golden.quantity(value))
            for node in self.ours
            for value in self._left_by(node)
        ]
        for place in self._places(theirs):
            yield from self._untelling_before(place)
            yield from self._at(place, made)
        for lacking, other in made:  # all that takes what it took should take what it gives
            for value in lacking.takes.values():
                yield Guilt(lacking, is_golden=True), {id(self.golden.quantity(value)): other}

    def _at(
        self, place: _GuiltyPlace, made: Sequence[tuple[Node, Quantity]]
    ) -> Iterator[tuple[Guilt, Moved]]:
        node = place.nodes[0]
        for slot, taken in place.inputs():
            for lacking, other in made:
                if lacking.call.target == node.call.target:
                    continue
                for parts in _laid_out(other, taken):
                    keys = [(id(each.application), slot) for each in place.quantities]
                    yield Guilt(lacking, is_golden=True), dict(zip(keys, parts, strict=True))
            ids = [id(each) for each in place.quantities]
            yield Guilt(node, is_extra=True), dict(zip(ids, taken, strict=True))
        yield from self._taken_otherwise(place)
        if len(place.nodes) == 1:
            for other in self.known.like(place.quantities[0]):
                yield Guilt(node), {id(place.quantities[0]): other}
        for _, other in made:
            yield from self._instead(place, other)

    def _instead(self, place: _GuiltyPlace, other: Quantity) -> Iterator[tuple[Guilt, Moved]]:
        """`other`, as the ranks may hold it, in the place of what they have."""
        for parts in _laid_out(other, place.quantities):
            ids = [id(each) for each in place.quantities]
            yield Guilt(place.nodes[0]), dict(zip(ids, parts, strict=True))

    def _places(self, nodes: Iterable[Node]) -> Iterator[_GuiltyPlace]:
        found: dict[tuple[Op, int, str], list[tuple[Node, Quantity]]] = {}
        for node in nodes:
            for slot, value in node.gives.items():
                name = slot if node.own is None else node.own.slot
                quantity = self.target.quantity(value)
                found.setdefault((node.call.op, node.call.call, name), []).append((node, quantity))
        for (_, _, slot), some in found.items():
            yield _GuiltyPlace([node for node, _ in some], slot, [quantity for _, quantity in some])

    def _untelling_before(self, place: _GuiltyPlace) -> Iterator[tuple[Guilt, Moved]]:
        """Positions, masks and counts that a call takes, which golden has anyhow, the last first.

        They tell nothing by themselves: those that golden has at this place may be others.
        """
        seen = set[Node]()
        waiting = list(place.nodes)
        found: list[Node] = []
        while waiting:
            for value in waiting.pop(0).takes.values():
                node = self.target.program.producers.get(value)
                if node is None or node in seen or self._tells(value):
                    continue
                seen.add(node)
                waiting.append(node)
                if not self.target.only_moves(node):
                    found.append(node)
        for each in self._places(found):
            other = self._named_alike(each)
            if other is not None:
                yield from self._instead(each, other)

    def _tells(self, value: ValueId) -> bool:
        quantity = self.target.quantity(value)
        try:
            return quantity.is_telling
        except DumpcmpError:
            return True

    def _named_alike(self, place: _GuiltyPlace) -> Quantity | None:
        """What golden has under the name of a place."""
        program, call = self.golden.program, place.nodes[0].call
        key = Key(program.model, program.step, call.op, call.call, place.slot)
        value = program.places.get(ValueId(0, key))
        return None if value is None else self.golden.quantities.get(value)

    def _taken_otherwise(self, place: _GuiltyPlace) -> Iterator[tuple[Guilt, Moved]]:
        """A call that both make, which takes what golden computed first and the target did not."""
        node, golden = place.nodes[0], self.golden
        for other in golden.program.nodes:
            if (other.call.op, other.call.call) != (node.call.op, node.call.call):
                continue
            if other.own is not None or other.call.target != node.call.target:
                continue
            for slot, value in other.takes.items():
                wanted = golden.quantity(value)
                if slot not in node.takes or wanted is self.target.quantity(node.takes[slot]):
                    continue
                behind = golden.program.behind([value])
                first = next((each for each in self.ours if each in behind), None)
                if first is not None:
                    lacking = _first_that_computes(golden, first, behind)
                    placed = place.quantities[0]
                    yield Guilt(lacking, is_golden=True), {(id(placed.application), slot): wanted}

    def _left_by(self, node: Node) -> Iterator[ValueId]:
        """What a call gives, and the memory that it wrote to, as it is then."""
        yield from node.gives.values()
        for value in node.gives.values():
            for taker in self.golden.program.consumers.get(value, ()):
                if isinstance(taker.own, RewrittenMemory):
                    yield from taker.gives.values()


def _laid_out(whole: Quantity, places: Sequence[Quantity]) -> Iterator[list[Quantity]]:
    """`whole` as the ranks may hold it, in the shapes that they have at `places`."""
    if len(places) == 1:
        yield [whole]  # in whatever shape
    try:
        shapes = [tuple(each.tensor.shape) for each in places]
        for parts in laid_out_as(whole.tensor, shapes):
            yield [Quantity(_tensor=part) for part in parts]
    except DumpcmpError:
        return


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


def _mends(moved: Moved, effects: list[tuple[Quantity, Quantity]]) -> bool:
    try:
        return all(_is_golden(golden.tensor, grafted(target, moved)) for golden, target in effects)
    except DumpcmpError:
        return False


def _is_golden(golden: Tensor, target: Tensor) -> bool:
    """Whether an effect of the target is golden's, or a slice of it that a rank has."""
    if target.numel() == golden.numel():
        return same_elements(golden, target)
    if not 0 < target.numel() < golden.numel():
        return False
    return any(True for _ in Marginals(golden).slices_of(fingerprint(target)))


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
