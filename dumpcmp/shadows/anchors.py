"""Anchors of quantised runs: golden goes on from what the target rounded to declared levels.

A quantised program is another program on purpose: it makes codes of numbers, and numbers of codes.
What it makes of golden's number is golden's number to the nearest level, or a product whose factors
were rounded. Where that holds, both shadows go on from the target's quantity, so that what comes
after is held against golden without any rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from dumpcmp.align.synonyms import keeps_elements
from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key, Op, Slot
from dumpcmp.nouns.levels import Quantised
from dumpcmp.nouns.value import Kind, dtype_named, value_of
from dumpcmp.replay.holding import hold
from dumpcmp.replay.rating import Rerun
from dumpcmp.shadows.declared_levels import are_codes, quantised
from dumpcmp.shadows.program import Node, Program, ValueId
from dumpcmp.shadows.quantities import Quantity
from dumpcmp.shadows.rounded_products import Factor, Product
from dumpcmp.shadows.shadow import Shadow


class Refusal(NamedTuple):
    """A value of the target in golden's place that declared levels do not explain."""

    golden: ValueId
    target: ValueId
    place: Key  # of the target's value, where golden's is expected
    reason: str


@dataclass(eq=False)
class Anchors:
    """Where golden's shadow goes on from the target's, and where it could not."""

    words: tuple[str, ...]  # levels that are declared
    golden: Program
    target: Shadow
    known: dict[tuple[ValueId, ValueId], str] = field(default_factory=dict)  # what levels explain
    refused: list[Refusal] = field(default_factory=list)
    _own: set[int] = field(init=False)
    _calls: dict[tuple[int, Op, int], Node] = field(init=False)

    def __post_init__(self) -> None:
        self._own = {id(each) for each in self.target.quantities.values()}
        self._calls = {
            (node.rank, node.call.op, node.call.call): node
            for node in self.target.program.nodes
            if node.own is None
        }

    def settle(self, shadow: Shadow) -> None:
        """Let weights that the target has as codes be what it makes of them: its start."""
        refused = ((each.golden, each.target) for each in self.refused)
        for ours, theirs in (*self.known, *refused):
            if is_of_weight(self.golden, ours) and id(shadow.quantities.get(ours)) not in self._own:
                shadow.quantities[ours] = self.target.quantity(theirs)

    # what a call takes

    def taken(
        self, node: Node, inputs: Mapping[str, Quantity], shadow: Shadow
    ) -> Mapping[str, Quantity]:
        """`inputs` of golden's call, those in place of which the target's takes rounded ones."""
        other = self._calls.get((node.rank, node.call.op, node.call.call))
        if other is None or node.own is not None:
            return inputs
        found = dict(inputs)
        for slot, value in node.takes.items():
            theirs = other.takes.get(slot)
            if theirs is None or not self._is_known(value, inputs[slot]):
                continue
            if self._may_be_rounded(shadow, value, theirs, inputs[slot]):
                anchored = self._rounded(shadow, value, theirs, inputs[slot])
                found[slot] = anchored or inputs[slot]
                if anchored is None:
                    self._refuse(value, theirs, other.call.site.key(slot), inputs[slot])
        return found

    def find_rounded_weights(self, shadow: Shadow) -> None:
        """Refuse weights of golden's in place of which the target's calls take rounded ones."""
        for node in self.golden.nodes:
            other = self._calls.get((node.rank, node.call.op, node.call.call))
            for slot, value in node.takes.items() if other is not None else ():
                theirs = other.takes.get(slot) if other is not None else None
                quantity = shadow.quantities.get(value)
                if theirs is None or quantity is None or not is_of_weight(self.golden, value):
                    continue
                if other is None or not self._may_be_rounded(shadow, value, theirs, quantity):
                    continue
                found = self._on_levels(shadow, value, theirs, quantity)
                if found is not None and not self._is_cast(shadow, value, theirs, quantity):
                    name = f"{value.key.op}.{value.key.slot.name}"
                    reason = (
                        f"{name} is not the same tensor: rel_l2 {found.rel_l2:.3g}; it is "
                        f"{found.said}: --allow {found.levels.name}, if that is meant"
                    )
                    place = other.call.site.key(slot)
                    self.refused.append(Refusal(value, theirs, place, reason))

    def _may_be_rounded(
        self, shadow: Shadow, ours: ValueId, theirs: ValueId, quantity: Quantity
    ) -> bool:
        is_other = quantity is not self.target.quantity(theirs)
        return is_other and self._are_alike(shadow, ours, theirs)

    def _are_alike(self, shadow: Shadow, ours: ValueId, theirs: ValueId) -> bool:
        """Whether both are floats of one shape, and neither stands for the other as a code."""
        records = shadow.record(ours), self.target.record(theirs)
        return (
            all(dtype_named(record.dtype).kind is Kind.FLOAT for record in records)
            and records[0].shape == records[1].shape
            and not are_codes(records[0].dtype, records[1].dtype)
        )

    def _rounded(
        self, shadow: Shadow, ours: ValueId, theirs: ValueId, quantity: Quantity
    ) -> Quantity | None:
        """The target's quantity, if it is golden's to the nearest level."""
        if (ours, theirs) in self.known:
            return self.target.quantity(theirs)
        found = self._on_levels(shadow, ours, theirs, quantity)
        if found is None:
            return None
        self.known[ours, theirs] = found.said
        return self.target.quantity(theirs)

    def _is_cast(self, shadow: Shadow, ours: ValueId, theirs: ValueId, quantity: Quantity) -> bool:
        """Whether the target's is golden's in its own dtype, which needs no levels."""
        golden = _as_recorded(quantity, shadow, ours)
        target = _as_recorded(self.target.quantity(theirs), self.target, theirs)
        return golden.dtype != target.dtype and torch.equal(golden.to(target.dtype), target)

    def _on_levels(
        self, shadow: Shadow, ours: ValueId, theirs: ValueId, quantity: Quantity
    ) -> Quantised | None:
        try:
            golden = _as_recorded(quantity, shadow, ours)
            target = _as_recorded(self.target.quantity(theirs), self.target, theirs)
        except DumpcmpError:
            return None
        return quantised(value_of(golden), value_of(target), self.words)

    def _is_known(self, value: ValueId, quantity: Quantity) -> bool:
        """Whether the target has it, or it is a weight, of which the target may have codes."""
        return id(quantity) in self._own or is_of_weight(self.golden, value)

    def _refuse(self, ours: ValueId, theirs: ValueId, place: Key, quantity: Quantity) -> None:
        try:
            wanted, found = quantity.tensor, self.target.quantity(theirs).tensor
            size = torch.linalg.vector_norm(wanted)
            apart = float(torch.linalg.vector_norm(found - wanted) / size)
            gain = float(((found - wanted) * wanted).sum() / (size * size))
        except DumpcmpError:
            return
        words = ", ".join(self.words)
        reason = (
            f"it is not golden's to the nearest level of {words}: {apart:.3g} off, "
            f"1{gain:+.3g} times golden's"
        )
        self.refused.append(Refusal(ours, theirs, place, reason))

    # what a call gives

    def given(self, node: Node, inputs: Mapping[str, Quantity], shadow: Shadow) -> None:
        """Let what golden's call gave be the target's of the same name, if rounding explains it."""
        if not all(self._is_known(value, inputs[slot]) for slot, value in node.takes.items()):
            return  # something before it is not explained
        for slot, value in node.gives.items():
            quantity = shadow.quantities[value]
            other = None if id(quantity) in self._own else self._named_alike(node, value, shadow)
            if other is None or quantity is self.target.quantity(other.value):
                continue
            anchored = self._rounded(shadow, value, other.value, quantity)
            said = "" if anchored else self._as_product(node, slot, shadow, value, other.value)
            if anchored is not None or not said:
                shadow.quantities[value] = self.target.quantity(other.value)
            else:
                self.refused.append(Refusal(value, other.value, other.key, said))

    def _named_alike(self, node: Node, value: ValueId, shadow: Shadow) -> _Named | None:
        """The target's value under a name of golden's, if it is one that may be it.

        The module that made it tells more than those around it.
        """
        program = self.target.program
        slots = self.golden.slots_of.get(value, ())
        names = [slot.key for slot in slots if not slot.key.slot.is_input]
        for key in sorted(names, key=lambda key: key.op.module != node.call.op.module):
            there = Key(program.model, program.step, key.op, key.call, key.slot)
            place = ValueId(value.rank, there)
            other = program.places.get(place)
            if other is None or other not in self.target.quantities:
                continue
            if self._are_alike(shadow, value, other):
                return _Named(place.key, other)
        return None

    def _as_product(
        self,
        node: Node,
        slot: str,
        shadow: Shadow,
        ours: ValueId,
        theirs: ValueId,
    ) -> str:
        """What is wrong with the target's value as a product of rounded factors."""
        made = shadow.quantities[ours].application
        if made is None:
            return "golden's op could not be run in float64"

        def run(given: Mapping[str, Tensor]) -> Tensor:
            return made.apply(given)[slot]

        try:
            given = {name: each.tensor for name, each in made.inputs.items()}
            known = shadow.quantities[ours].tensor
            got = _as_recorded(self.target.quantity(theirs), self.target, theirs)
            if known.shape != got.shape:
                return f"it has shape {list(got.shape)}, and golden's {list(known.shape)}"
            replay = hold(Rerun({slot: known}), slot, got)
            factors = {name: self._factor(node, name) for name in given}
            replay = Product(run, given, known, got).in_levels(factors, self.words, replay)
        except DumpcmpError as error:
            return error.message
        said = wrong(replay)
        if not said:
            self.known[ours, theirs] = replay.levels
        return said

    def _factor(self, node: Node, name: str) -> Factor:
        """What an input of golden's call is; a weight is unseen unless the target's takes it."""
        number, _, slot = name.rpartition(" ")
        if Slot(slot).is_gradient:
            return Factor.GRADIENT
        value = node.takes.get(name)
        if value is None:  # what was chosen
            return Factor.SEEN
        call = node.own.calls[int(number)] if node.own is not None else node.call
        other = self._calls.get((node.rank, call.op, call.call))
        theirs = other.takes.get(slot) if other is not None else None
        if theirs is not None and (value, theirs) in self.known:
            return Factor.ANCHORED
        is_seen = theirs is not None and not self._is_coded(value, theirs)
        return Factor.SEEN if is_seen or not is_of_weight(self.golden, value) else Factor.UNSEEN

    def _is_coded(self, ours: ValueId, theirs: ValueId) -> bool:
        return are_codes(self.golden.records[ours].dtype, self.target.record(theirs).dtype)


class _Named(NamedTuple):
    """A value of the target, and the name of golden's by which it was found."""

    key: Key
    value: ValueId


def _as_recorded(quantity: Quantity, shadow: Shadow, value: ValueId) -> Tensor:
    """Its numbers, rounded as the run rounded them."""
    dtype: torch.dtype = getattr(torch, shadow.record(value).dtype)
    return quantity.tensor.to(dtype)


def is_of_weight(program: Program, value: ValueId) -> bool:
    """Whether a value is a weight, or one that is laid out otherwise."""
    while (node := program.producers.get(value)) is not None:
        first = node.takes.get("input.0")
        if first is None or not keeps_elements(node.call.op.function):
            return False
        value = first
    return value.key.slot.is_weight
