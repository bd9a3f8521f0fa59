"""Quantities: what recorded values are in exact arithmetic, told by how they are computed.

A quantity is known by its expression, so that two programs that are alike share theirs, and
nothing is computed for that. Its numbers are computed when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.shadows.fingerprints import Fingerprint, fingerprint, is_telling, same_elements

Operation = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]  # inputs to outputs, by slot
_NOTHING = 2.0**-40  # of the terms of a sum: float64 leaves no more where they cancel
LoadTensor = Callable[[], Tensor]  # raises DumpcmpError where there is nothing to load


@dataclass(eq=False)
class Application:
    """An operation on quantities."""

    run: Operation
    inputs: Mapping[str, Quantity]
    recorded: Mapping[str, LoadTensor]  # what stands for an output that cannot be computed, by slot
    name: str = ""
    problem: str = ""  # why it could not be run, once that is known
    level: Callable[[Mapping[str, Tensor]], float] | None = None  # the size of what may cancel
    scales: bool = False  # it moves or scales its first input, so that of nothing it gives nothing

    def apply(self, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Run it on other numbers; DumpcmpError where that cannot be done."""
        try:
            return self.run(given)
        except RuntimeError as error:  # torch refuses these numbers
            raise DumpcmpError(f"it cannot be run in float64: {error}") from error

    def compute(self, wanted: Mapping[str, Quantity]) -> None:
        """Set the numbers of the `wanted` outputs, all of which it has."""
        found: Mapping[str, Tensor] = {}
        if not self.problem:
            try:
                found = self.apply({slot: each.tensor for slot, each in self.inputs.items()})
            except DumpcmpError as error:
                self.problem = error.message
        for slot, quantity in wanted.items():
            if slot in found:
                quantity.set(found[slot])
            else:
                self.problem = self.problem or f"its replay gives no {slot}"
                quantity.set(self.recorded[slot]())
                quantity.is_bridge = True


@dataclass(eq=False)
class Quantity:
    """One value in exact arithmetic: a leaf with `load`, or what an `application` gives."""

    load: LoadTensor | None = None
    application: Application | None = None
    slot: str = ""
    siblings: Mapping[str, Quantity] = field(default_factory=dict)  # outputs of the same operation
    is_bridge: bool = False  # a recorded value stands for what could not be computed
    _tensor: Tensor | None = None
    problem: str = ""  # why there are no numbers, once that is known

    def set(self, tensor: Tensor) -> None:
        self._tensor = tensor

    @property
    def is_known(self) -> bool:
        """Whether its numbers are computed."""
        return self._tensor is not None

    @property
    def tensor(self) -> Tensor:
        """Its numbers in float64, computed now if need be; DumpcmpError where none can be had."""
        for each in _in_order(self):
            each.compute()
        if self._tensor is None:
            raise DumpcmpError(self.problem or "it has no numbers")
        return self._tensor

    def compute(self) -> None:
        """Compute it, of inputs that are computed already."""
        if self._tensor is not None or self.problem:
            return
        try:
            if self.application is not None:
                self.application.compute(self.siblings)
            elif self.load is not None:
                self._tensor = self.load()
        except DumpcmpError as error:
            self.problem = error.message

    @property
    def inputs(self) -> Iterator[Quantity]:
        if self.application is not None:
            yield from self.application.inputs.values()

    @cached_property
    def print(self) -> Fingerprint:
        """Its sums."""
        return fingerprint(self.tensor)

    @cached_property
    def is_telling(self) -> bool:
        """Whether it is evidence where it is found again."""
        return is_telling(self.tensor)

    def is_same(self, other: Quantity) -> bool:
        """Whether both are one quantity: by their expression, or by every element."""
        if self is other:
            return True
        try:
            if self.tensor.shape != other.tensor.shape:
                return False
            if same_elements(self.tensor, other.tensor):
                return True
            return self.is_nothing and other.is_nothing
        except DumpcmpError:
            return False

    @cached_property
    def is_nothing(self) -> bool:
        """Whether it is what float64 leaves of terms that cancel."""
        first = self._unscaled
        application, tensor = first.application, first.tensor
        if application is None or application.level is None or not tensor.numel():
            return False
        given = {slot: each.tensor for slot, each in application.inputs.items()}
        return float(tensor.abs().max()) <= _NOTHING * application.level(given)

    @property
    def _unscaled(self) -> Quantity:
        """What it was moved or scaled from, at the start of any number of such operations."""
        found = self
        while (made := found.application) is not None and made.scales and "input.0" in made.inputs:
            if not found.tensor.numel():
                break
            found = made.inputs["input.0"]
        return found


def _in_order(last: Quantity) -> Iterator[Quantity]:
    """`last` and all that it needs and that is not computed yet, each after its inputs."""
    begun: set[int] = set()
    waiting = [(last, False)]
    while waiting:
        quantity, is_ready = waiting.pop()
        if is_ready:
            yield quantity
        elif id(quantity) not in begun and not quantity.is_known and not quantity.problem:
            begun.add(id(quantity))
            waiting.append((quantity, True))
            waiting += [(each, False) for each in quantity.inputs]


@dataclass(eq=False)
class Book:
    """All quantities of two runs: each expression once."""

    _leaves: dict[Hashable, Quantity] = field(default_factory=dict)
    _computed: dict[Hashable, Mapping[str, Quantity]] = field(default_factory=dict)

    def leaf(self, identity: Hashable, load: LoadTensor) -> Quantity:
        """The leaf of this identity; `load` reads it."""
        found = self._leaves.get(identity)
        if found is None:
            found = self._leaves[identity] = Quantity(load)
        return found

    def computed(
        self, expression: Hashable, application: Callable[[], Application]
    ) -> Mapping[str, Quantity]:
        """What an operation gives, by slot, whichever run asked for it first."""
        found = self._computed.get(expression)
        if found is None:
            made = application()
            outputs: dict[str, Quantity] = {}
            for slot in made.recorded:
                outputs[slot] = Quantity(application=made, slot=slot, siblings=outputs)
            found = self._computed[expression] = outputs
        return found

    def known(self, expression: Hashable) -> Mapping[str, Quantity] | None:
        """What an operation gives, if a run has asked for it."""
        return self._computed.get(expression)


def tensor_of(loaded: Tensor) -> Tensor:
    """A recorded tensor in float64, or as it is where it holds no floats."""
    if loaded.is_complex():
        return loaded.to(torch.complex128)
    return loaded.to(torch.float64) if loaded.is_floating_point() else loaded
