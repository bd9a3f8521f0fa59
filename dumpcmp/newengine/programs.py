"""Both programs of each step in float64: what each value is, and where the programs part."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from dumpcmp.align.counting import Counting
from dumpcmp.comparing.side import Side, StepName
from dumpcmp.nouns.key import Key
from dumpcmp.shadows.gradient_sums import gradient_nodes
from dumpcmp.shadows.program import Node, Program, ValueId
from dumpcmp.shadows.proving import Proof, StepProof
from dumpcmp.shadows.quantities import Quantity
from dumpcmp.shadows.shadow import Shadow
from dumpcmp.shadows.starting import Before


@dataclass(eq=False)
class StepPrograms:
    """One step of both runs."""

    golden: Shadow
    target: Shadow
    asked: StepProof
    proof: Proof


@dataclass(eq=False)
class RunValues:
    """What the values of one run are in float64, and which call made each."""

    side: Side
    shadows: list[Shadow] = field(default_factory=list)
    quantities: dict[ValueId, Quantity] = field(default_factory=dict)
    firsts: dict[ValueId, ValueId] = field(default_factory=dict)
    gradients: dict[ValueId, Node] = field(default_factory=dict)  # of ranks: by their own calls
    is_in_parts: bool = False  # microbatches
    names: Mapping[Key, Key] = field(default_factory=dict)  # of weights at the end: the effect

    def add(self, shadow: Shadow, *, has_gradients: bool) -> None:
        """Know of a step; its program may lack the gradients that its calls hand back."""
        self.shadows.append(shadow)
        self.firsts |= shadow.program.places
        self.quantities |= shadow.quantities
        self.is_in_parts |= shadow.program.num_parts > 1
        if not has_gradients:
            for node in gradient_nodes(shadow.program):
                self.gradients |= dict.fromkeys(node.gives.values(), node)

    def places(self, key: Key) -> Iterator[ValueId]:
        """The values that ranks have under a name."""
        for record in self.side.listing.values.get(key, ()):
            place = ValueId(record.rank, self.names.get(record.key, record.key))
            yield self.firsts.get(place, place)

    def quantity(self, key: Key) -> Hashable | None:
        held = [self.quantities.get(place) for place in self.places(key)]
        if not held or None in held:
            return None
        found = tuple(id(quantity) for quantity in held)
        return found[0] if len(set(found)) == 1 else found

    def sole(self, key: Key) -> Quantity | None:
        """What a value is that lies whole on one rank."""
        held = [self.quantities.get(place) for place in self.places(key)]
        return held[0] if len(held) == 1 else None

    def producer(self, place: ValueId) -> Node | None:
        found = (shadow.program.producers.get(place) for shadow in self.shadows)
        return next((node for node in found if node), None) or self.gradients.get(place)

    def consumers(self, place: ValueId) -> Iterator[Node]:
        for shadow in self.shadows:
            yield from shadow.program.consumers.get(place, ())


@dataclass(eq=False)
class Programs:
    """The programs of all steps so far."""

    counting: Counting
    remarks: dict[str, None] = field(default_factory=dict)
    _before: dict[str, tuple[int, Before | None]] = field(default_factory=dict)

    def of_span(
        self, golden: Side, target: Side
    ) -> tuple[list[StepPrograms], RunValues, RunValues]:
        found: list[StepPrograms] = []
        ours, theirs = RunValues(golden), RunValues(target)
        for one, other in _steps(golden, target, self.counting):
            step = self._of_step(golden, target, one, other)
            if step is not None:
                found.append(step)
                shadows = step.golden, step.target
                is_whole = all(shadow.program.is_whole for shadow in shadows)
                ours.add(step.golden, has_gradients=is_whole)
                theirs.add(step.target, has_gradients=is_whole)
        return found, ours, theirs

    def _of_step(
        self, golden: Side, target: Side, one: StepName, other: StepName
    ) -> StepPrograms | None:
        proof = Proof()
        number, before = self._before.get(one[0], (-1, None))
        asked = StepProof(
            golden.archive,
            target.archive,
            proof,
            before if number == one[1] - 1 else None,
            (_parts(golden, one), _parts(target, other)),
        )
        self._before[one[0]] = one[1], asked.ask(one, other)
        if not asked._shadows:
            return None
        self.remarks |= dict.fromkeys(proof.remarks)
        return StepPrograms(*asked._shadows, asked, proof)


def _parts(side: Side, name: StepName) -> list[StepName]:
    """The recorded steps that a step is made of, where it is none of them alone."""
    found = {
        record.key.site[:2]
        for key, records in side.listing.values.items()
        if key.site[:2] == name
        for record in records
    }
    return sorted(found) if found - {name} else []


def _steps(golden: Side, target: Side, counting: Counting) -> Iterator[tuple[StepName, StepName]]:
    """The steps that both sides have, each under its own name."""
    mine: dict[StepName, StepName] = {}
    for site in target.listing.sites:
        name = counting.names.get(site.model, site.model)
        mine.setdefault((name, counting.in_golden_terms(site.model, site.step)), site[:2])
    for place in dict.fromkeys(site[:2] for site in golden.listing.sites):
        if place in mine:
            yield place, mine[place]
