"""All values of one run in float64, for those of the other run to be found among them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

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
    same,
    same_elements,
)
from dumpcmp.shadows.quantities import Quantity
from dumpcmp.shadows.rows_index import RowIndex, index_of, shares_for
from dumpcmp.shadows.shadow import Shadow, identity
from dumpcmp.shadows.slices import Marginals, is_covered, is_permuted_dims


@dataclass(eq=False)
class KnownValues:
    """The quantities of one run, by identity and by their numbers.

    Those of several ranks may be parts of what the other run has, or have such parts.
    """

    shadow: Shadow
    in_any_order: bool = True  # whether elements in another order are the same quantity
    num_ranks: int = 1  # of the run that has more
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
        """Whether the run has this quantity, in any shape, or parts of which it is made."""
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
        if self.num_ranks > 1 and (self._slices.has(quantity) or self._is_joined(quantity)):
            return True
        if not self.in_any_order:
            return False
        if any(is_permuted_dims(quantity, each) for _, each in near):
            return True
        return self.num_ranks > 1 and self._rows.has_all(quantity.tensor)

    @cached_property
    def _slices(self) -> SliceIndex:
        return SliceIndex(self._telling, shares_for(self.num_ranks))

    @cached_property
    def _rows(self) -> RowIndex:
        tensors = (each.tensor for each in self._telling)
        return index_of(tensors, shares_for(self.num_ranks))

    def _is_joined(self, quantity: Quantity) -> bool:
        """Whether all of its parts are something that the run has."""
        return any(
            all(any(held.is_same(part) for held, _ in self._prints.near(part)) for part in parts)
            for parts in parts_of(quantity.tensor, shares_for(self.num_ranks))
        )

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
                or self._is_covered(quantity)
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

    def _is_covered(self, quantity: Quantity) -> bool:
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


class _Slice(NamedTuple):
    """An equal part of a tensor along one dim, by two sums."""

    size: float  # of absolute values
    total: float
    whole: Quantity
    dim: int
    first: int
    length: int

    def is_same(self, wanted: Fingerprint) -> bool:
        least = same() * wanted.size
        if abs(self.size - wanted.size) > least or abs(self.total - wanted.total) > least:
            return False
        part = self.whole.tensor.narrow(self.dim, self.first, self.length)
        return fingerprint(part).is_same(wanted)


class SliceIndex:
    """The equal parts into which ranks may have cut tensors."""

    def __init__(self, wholes: Iterable[Quantity], shares: Sequence[int]) -> None:
        self._by_numel: dict[int, list[_Slice]] = {}
        for whole in wholes:
            for one in _slices(whole, shares):
                self._by_numel.setdefault(_numel(one), []).append(one)
        for some in self._by_numel.values():
            some.sort(key=lambda one: one.size)

    def has(self, quantity: Quantity) -> bool:
        """Whether it is one of those parts, its elements in their order."""
        wanted = quantity.print
        some = self._by_numel.get(quantity.tensor.numel(), [])
        at = bisect_left(some, wanted.size * (1 - 2 * same()), key=lambda one: one.size)
        while at < len(some) and some[at].size <= wanted.size * (1 + 2 * same()):
            if some[at].is_same(wanted):
                return True
            at += 1
        return False


def _numel(one: _Slice) -> int:
    return one.whole.tensor.numel() // one.whole.tensor.shape[one.dim] * one.length


def _slices(whole: Quantity, shares: Sequence[int]) -> Iterator[_Slice]:
    tensor = whole.tensor
    if not tensor.numel():
        return
    marginals = Marginals(tensor)
    for dim, size in enumerate(tensor.shape):
        for share in shares:
            if share == 1 or size % share:
                continue
            length = size // share
            sums = marginals.along(dim).reshape(2, share, length).sum(2).tolist()
            for number in range(share):
                yield _Slice(sums[0][number], sums[1][number], whole, dim, number * length, length)


def parts_of(tensor: Tensor, shares: Sequence[int]) -> Iterator[list[Fingerprint]]:
    """The fingerprints of equal parts of a tensor, for each way to cut it."""
    for dim, size in enumerate(tensor.shape):
        for share in shares:
            if share > 1 and size % share == 0:
                yield [fingerprint(part) for part in tensor.chunk(share, dim)]
