"""Where two programs part: the first calls that make what the other program never has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.shadows.fingerprints import Fingerprint, PrintIndex, same_elements
from dumpcmp.shadows.program import Node, ValueId
from dumpcmp.shadows.quantities import Quantity
from dumpcmp.shadows.running import Shadow
from dumpcmp.shadows.slices import Marginals, is_covered, is_permuted_dims

MOST_GRAFTS = 64


@dataclass(eq=False)
class KnownQuantities:
    """All quantities of one run, by identity and by their numbers."""

    shadow: Shadow
    _own: set[int] = field(init=False)
    _prints: PrintIndex[Quantity] = field(init=False)
    _answers: dict[int, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        every = {id(each): each for each in self.shadow.quantities.values()}
        self._own, self._prints = set(every), PrintIndex()
        for each in every.values():
            try:
                self._prints.add(each.print, each)
            except DumpcmpError:
                continue  # it has no numbers, so nothing is known by it

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
        return any(is_permuted_dims(quantity, each) for _, each in near)

    def has_in_slices(self, quantity: Quantity) -> bool:
        """Whether it is a slice of what the run has, or all of its slices are: a long search."""
        try:
            found = self._is_slice(quantity.print) or self._is_joined(quantity)
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
        promoted = [each for each in lacking if other.has_in_slices(each)]
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
        before = [each for each in node.takes.values() if not other.has(shadow.quantity(each))]
        waiting += before
        if not before and node not in found:
            found.append(node)
    return sorted(found, key=lambda node: (node.rank, node.call.order))


def guilty(
    target: Shadow,
    known: KnownQuantities,
    ours: Collection[Node],
    theirs: Collection[Node],
    effects: Iterable[tuple[Quantity, Quantity]],
) -> Node | None:
    """The call of the target that, with golden's value in its place, makes the effects golden's.

    `ours` and `theirs` are golden's and the target's frontier, and `known` all that golden has;
    `effects` pairs golden's with the target's. None where no single one does.
    """
    wanted = list(effects)
    made = [known.shadow.quantity(value) for node in ours for value in node.gives.values()]
    tries = 0
    for node in theirs:
        for value in node.gives.values():
            placed = target.quantity(value)
            for other in (*known.like(placed), *made):
                tries += 1
                if tries > MOST_GRAFTS:
                    return None
                if _mends(placed, other, wanted):
                    return node
    return None


def _mends(placed: Quantity, known: Quantity, effects: list[tuple[Quantity, Quantity]]) -> bool:
    try:
        wanted, own = known.tensor, placed.tensor
        if wanted.numel() != own.numel() or wanted.dtype != own.dtype:
            return False
        moved = {id(placed): wanted.reshape(own.shape)}
        return all(
            same_elements(golden.tensor, grafted(target, moved)) for golden, target in effects
        )
    except DumpcmpError:
        return False


def grafted(effect: Quantity, moved: Mapping[int, Tensor]) -> Tensor:
    """What `effect` would be if the quantities that `moved` names by id were these tensors."""
    found: dict[int, Tensor] = dict(moved)
    waiting = [(effect, False)]
    while waiting:
        quantity, is_ready = waiting.pop()
        if id(quantity) in found:
            continue
        inputs = list(quantity.inputs)
        if not is_ready:
            waiting.append((quantity, True))
            waiting += [(each, False) for each in inputs]
            continue
        application = quantity.application
        if application is None or all(found[id(each)] is each.tensor for each in inputs):
            found[id(quantity)] = quantity.tensor
            continue
        given = {slot: found[id(each)] for slot, each in application.inputs.items()}
        for slot, tensor in application.apply(given).items():
            if slot in quantity.siblings:
                found.setdefault(id(quantity.siblings[slot]), tensor)
    return found[id(effect)]
