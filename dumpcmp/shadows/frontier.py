"""Where two programs part: the first calls that make what the other program never has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.shadows.fingerprints import PrintIndex, same_elements
from dumpcmp.shadows.program import Node, ValueId
from dumpcmp.shadows.quantities import Quantity
from dumpcmp.shadows.running import Shadow

MOST_GRAFTS = 64


@dataclass(eq=False)
class KnownQuantities:
    """All quantities of one run, by identity and by their numbers."""

    shadow: Shadow
    _own: set[int] = field(init=False)
    _prints: PrintIndex[Quantity] = field(init=False)

    def __post_init__(self) -> None:
        every = {id(each): each for each in self.shadow.quantities.values()}
        self._own, self._prints = set(every), PrintIndex()
        for each in every.values():
            try:
                self._prints.add(each.print, each)
            except DumpcmpError:
                continue  # it has no numbers, so nothing is known by it

    def has(self, quantity: Quantity) -> bool:
        """Whether the run has this quantity, in any shape and order of dims."""
        if id(quantity) in self._own:
            return True
        try:
            wanted = quantity.print
            return not quantity.is_telling or any(True for _ in self._prints.near(wanted))
        except DumpcmpError:
            return False


def frontier(shadow: Shadow, values: Iterable[ValueId], other: KnownQuantities) -> list[Node]:
    """Going back from `values` through what `other` lacks: the calls all of whose inputs it has."""
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
    golden: Shadow,
    ours: Collection[Node],
    theirs: Collection[Node],
    effects: Iterable[tuple[Quantity, Quantity]],
) -> Node | None:
    """The call of the target that, with golden's value in its place, makes the effects golden's.

    `ours` and `theirs` are golden's and the target's frontier; `effects` pairs golden's with the
    target's. None where no single one does.
    """
    wanted = list(effects)
    tries = 0
    for node in theirs:
        for value in node.gives.values():
            placed = target.quantity(value)
            for other in ours:
                for known in other.gives.values():
                    tries += 1
                    if tries > MOST_GRAFTS:
                        return None
                    if _mends(placed, golden.quantity(known), wanted):
                        return node
    return None


def _mends(placed: Quantity, known: Quantity, effects: list[tuple[Quantity, Quantity]]) -> bool:
    try:
        wanted, own = known.tensor, placed.tensor
        if wanted.numel() != own.numel():
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
        for slot, tensor in application.run(given).items():
            if slot in quantity.siblings:
                found.setdefault(id(quantity.siblings[slot]), tensor)
    return found[id(effect)]
