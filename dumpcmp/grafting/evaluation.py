"""What the target's program gives in float64 with some of its faults in it, and others put right.

Where a fault is put right, golden's own operation runs on what the target has by then, so that what
went wrong before it stays wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dumpcmp.grafting.exact_sides import ExactSides
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.shadows.quantities import Application, Quantity

_OWN, _GOLDEN = -2, -1  # the two programs; a rank stands for golden's calls in the target's there
_TIES = 0.05  # of the elements of a choice: rounding decides on those
EvaluatedAt = tuple[int, int]  # one of these, and the id of a quantity


@dataclass(frozen=True, slots=True, eq=False)
class RecordedChoice:
    """A call of either side that chooses by numbers, such as the experts of a token."""

    inputs: Mapping[str, Quantity]
    run: Callable[[Mapping[str, Tensor]], Tensor]
    recorded: Sequence[Quantity]  # the target's choice, and golden's

    def made(self, given: Mapping[str, Tensor]) -> Tensor:
        """The choice on other numbers: a recorded one, where few elements are at its edge."""
        again = self.run(given)
        choices = [each.tensor for each in self.recorded]
        known = [each for each in choices if each.shape == again.shape]
        apart = [(float((each != again).double().mean()), at) for at, each in enumerate(known)]
        least, at = min(apart, default=(1.0, 0))
        return known[at] if least <= _TIES else again


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with the values of both runs, by id of the quantity."""

    replaced: frozenset[int] = frozenset()  # the target's, in place of which golden's op runs
    bridged: frozenset[int] = frozenset()  # the target's, whose own op cannot be run: golden's does
    offsets: Mapping[int, Tensor] = field(default_factory=dict)  # what a call gave too much
    choices: Mapping[int, RecordedChoice] = field(default_factory=dict)  # by id of either side's


@dataclass(eq=False)
class Evaluation:
    """One run of both programs with `faults`."""

    sides: ExactSides
    faults: Faults
    dtypes: Mapping[int, torch.dtype] = field(default_factory=dict)  # round results to these
    _found: dict[EvaluatedAt, Tensor] = field(default_factory=dict)
    _applied: dict[EvaluatedAt, Mapping[str, Tensor]] = field(default_factory=dict)

    def target(self, quantity: Quantity) -> Tensor:
        """What the target's program gives."""
        return self._evaluate(_OWN, quantity)

    def golden(self, quantity: Quantity) -> Tensor:
        """What golden's program gives."""
        return self._evaluate(_GOLDEN, quantity)

    def put_right(self, quantity: Quantity) -> Tensor:
        """What golden's call gives, in place of the target's `quantity`, on what the target has."""
        return self._evaluate(*self._right(quantity))

    def _right(self, quantity: Quantity) -> tuple[int, Quantity]:
        earlier = self.sides.earlier.get(id(quantity))
        if earlier is not None:  # golden makes nothing of it
            return _OWN, earlier
        return self.sides.ranks[id(quantity)], self.sides.matched[id(quantity)]

    def _evaluate(self, kind: int, last: Quantity) -> Tensor:
        asked = kind
        waiting = [(kind, last, False)]
        begun: set[EvaluatedAt] = set()
        while waiting:
            kind, quantity, is_ready = waiting.pop()
            spot = kind, id(quantity)
            if spot in self._found:
                continue
            if is_ready:
                self._found[spot] = self._value(kind, quantity)
                continue
            if spot in begun:
                raise DumpcmpError("what matches runs in circles")
            begun.add(spot)
            waiting.append((kind, quantity, True))
            waiting += [(*need, False) for need in self._needs(kind, quantity)]
        return self._found[asked, id(last)]

    def _needs(self, kind: int, quantity: Quantity) -> Iterator[tuple[int, Quantity]]:
        made = quantity.application
        if kind == _OWN and self._is_grafted(quantity):
            yield self._right(quantity)
        elif kind != _GOLDEN and (chosen := self.faults.choices.get(id(quantity))) is not None:
            yield from (self._taken(kind, each) for each in chosen.inputs.values())
        elif made is not None and not made.problem:
            for slot, each in made.inputs.items():
                yield self._input(kind, made, slot, each)

    def _input(
        self, kind: int, made: Application, slot: str, given: Quantity
    ) -> tuple[int, Quantity]:
        if kind < 0:
            return kind, given
        other = self.sides.taken.get((kind, id(made), slot))
        return self._taken(kind, given) if other is None else (_OWN, other)

    def _taken(self, kind: int, given: Quantity) -> tuple[int, Quantity]:
        if kind < 0:
            return kind, given
        other = self.sides.counterpart(kind, given)
        return (kind, given) if other is None else (_OWN, other)

    def _is_grafted(self, quantity: Quantity) -> bool:
        return id(quantity) in self.faults.replaced or id(quantity) in self.faults.bridged

    def _value(self, kind: int, quantity: Quantity) -> Tensor:
        if kind == _OWN and self._is_grafted(quantity):
            place, other = self._right(quantity)
            found = _in_shape_of(quantity, self._found[place, id(other)])
        elif kind != _GOLDEN and (chosen := self.faults.choices.get(id(quantity))) is not None:
            found = self._chosen(kind, quantity, chosen)
        else:
            found = self._computed(kind, quantity)
        if kind < 0 and (more := self.faults.offsets.get(id(quantity))) is not None:
            found = found + more
        dtype = self.dtypes.get(id(quantity)) if kind < 0 else None
        return found if dtype is None else found.to(dtype).to(found.dtype)

    def _chosen(self, kind: int, quantity: Quantity, decision: RecordedChoice) -> Tensor:
        places = {slot: self._taken(kind, each) for slot, each in decision.inputs.items()}
        given = {slot: self._found[k, id(each)] for slot, (k, each) in places.items()}
        if all(given[slot] is each.tensor for slot, each in decision.inputs.items()):
            return quantity.tensor
        return decision.made(given)

    def _computed(self, kind: int, quantity: Quantity) -> Tensor:
        own, made = quantity.tensor, quantity.application
        if made is None or made.problem or quantity.is_bridge:
            return own
        spot = kind, id(made)
        if spot not in self._applied:
            found = {slot: self._input(kind, made, slot, q) for slot, q in made.inputs.items()}
            given = {slot: self._found[k, id(q)] for slot, (k, q) in found.items()}
            is_same = all(given[slot] is q.tensor for slot, q in made.inputs.items())
            self._applied[spot] = {} if is_same else made.apply(_moved(made, given))
        return self._applied[spot].get(quantity.slot, own)


def _moved(made: Application, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """`given`, by which an op that jumps may jump elsewhere than the recorded run did."""
    if "near" not in made.inputs:
        return given
    return {**given, "near": torch.full_like(given["near"], torch.inf, dtype=torch.float64)}


def _in_shape_of(own: Quantity, other: Tensor) -> Tensor:
    if own.tensor.numel() != other.numel():
        raise DumpcmpError("golden's value has another number of elements")
    return other.reshape(own.tensor.shape)


def distance(golden: Tensor, target: Tensor, least: float = 0.0) -> float:
    """How far the target's effect is off golden's, relative to golden's size, or to `least`."""
    if golden.shape != target.shape:
        return torch.inf
    if not (golden.is_floating_point() or golden.is_complex()):
        return float((golden != target).double().mean()) if golden.numel() else 0.0
    off = torch.where(golden == target, 0, target - golden)
    off = torch.where(golden.isnan() & target.isnan(), 0, off)
    if not bool(off.isfinite().all()):
        return torch.inf
    return float(torch.linalg.vector_norm(off)) / (max(size_of(golden), least) or 1.0)


def size_of(tensor: Tensor) -> float:
    """The norm of what is finite in it."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    return float(torch.linalg.vector_norm(tensor[tensor.isfinite()]))


def together(distances: Collection[float]) -> float:
    """The root of the mean square."""
    each = [one * one for one in distances]
    return float(sum(each) / len(each)) ** 0.5 if each else 0.0
