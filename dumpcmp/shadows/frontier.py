"""Where two programs part: the first calls that make what the other program never has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dumpcmp.shadows.known_values import KnownValues
from dumpcmp.shadows.program import Node, ValueId
from dumpcmp.shadows.shadow import Shadow


def frontier(shadow: Shadow, values: Iterable[ValueId], other: KnownValues) -> list[Node]:
    """Going back from `values` through what `other` lacks: the calls all of whose inputs it has."""
    shown = list(values)
    while True:
        found = _frontier(shadow, shown, other)
        made = [shadow.quantity(value) for node in found for value in node.gives.values()]
        lacking = [each for each in made if not other.has(each)]
        promoted = [each for each in lacking if other.in_any_order and other.has_in_slices(each)]
        if not promoted:
            return found


def _frontier(shadow: Shadow, values: Iterable[ValueId], other: KnownValues) -> list[Node]:
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


def _is_lacking(shadow: Shadow, value: ValueId, other: KnownValues) -> bool:
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


def unknown_leaves(shadow: Shadow, node: Node, other: KnownValues) -> Iterator[str]:
    """Where `node` takes a leaf that is nothing of the other run's, nor a slice of it, by slot."""
    for slot, value in node.takes.items():
        quantity = shadow.quantity(value)
        is_lacking = value not in shadow.program.producers and not (
            other.has(quantity) or other.has_bytes(shadow.record(value).digest)
        )
        if is_lacking and quantity.is_telling and not other.has_in_slices(quantity):
            yield slot
