"""Finds golden's quantities among the target's that are computed in another way.

Where two programs are written otherwise, expressions differ and numbers tell: a quantity of
golden's that has the target's numbers is the target's, and what golden makes of it is the same
expression again. So nothing more is computed behind where the programs are written otherwise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.shadows.fingerprints import PrintIndex, same_elements
from dumpcmp.shadows.quantities import Quantity
from dumpcmp.shadows.shadow import Shadow

_AHEAD = 48  # quantities of one shape that are looked at behind the last that was found


@dataclass(eq=False)
class SameNumbers:
    """The quantities of the target that golden does not have by their expressions."""

    target: Shadow
    shared: Collection[int]  # ids of those that it has
    _waiting: dict[tuple[int, ...], list[Quantity]] = field(default_factory=dict)
    _known: dict[tuple[int, ...], PrintIndex[Quantity]] = field(default_factory=dict)
    _own: set[int] = field(init=False)

    def __post_init__(self) -> None:
        seen = set(self.shared)
        self._own = {id(each) for each in self.target.quantities.values()}
        for node in self.target.program.nodes:
            for value in node.gives.values():
                quantity = self.target.quantities.get(value)
                if quantity is not None and id(quantity) not in seen:
                    seen.add(id(quantity))
                    shape = self.target.record(value).shape
                    self._waiting.setdefault(shape, []).append(quantity)
        for waiting in self._waiting.values():
            waiting.reverse()

    def find(self, quantity: Quantity, shape: tuple[int, ...]) -> Quantity | None:
        """The target's quantity of the same numbers, if it has one."""
        if id(quantity) in self._own:
            return quantity
        waiting, known = self._waiting.get(shape), self._known.get(shape)
        if not waiting and known is None:
            return None
        try:
            if not _tells(quantity):
                return None
            found = self._among(known, quantity)
        except DumpcmpError:
            return None
        index = self._known.setdefault(shape, PrintIndex())
        ahead = 0
        while found is None and waiting and ahead < _AHEAD:
            ahead += 1
            other = waiting.pop()
            try:
                index.add(other.print, other)
                if other.print.is_same(quantity.print):
                    found = other if same_elements(quantity.tensor, other.tensor) else None
            except DumpcmpError:
                continue
        return found

    def _among(self, known: PrintIndex[Quantity] | None, quantity: Quantity) -> Quantity | None:
        for found, other in known.near(quantity.print) if known is not None else ():
            if found.is_same(quantity.print) and same_elements(quantity.tensor, other.tensor):
                return other
        return None


def _tells(quantity: Quantity) -> bool:
    tensor = quantity.tensor
    if tensor.is_floating_point() or tensor.is_complex():
        return quantity.is_telling
    return tensor.numel() > 1 and len(torch.unique(tensor.reshape(-1)[: 1 << 12])) > 3
