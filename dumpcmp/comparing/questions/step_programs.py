"""Both programs of each step in float64: what each value is, and where the programs part."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from dumpcmp.align.counting import Counting
from dumpcmp.comparing.requests import Asking
from dumpcmp.comparing.side import Side, StepName
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key, Op, Site, Slot
from dumpcmp.nouns.record import Kept, Record
from dumpcmp.nouns.selection import Io, Level
from dumpcmp.shadows.gradient_sums import gradient_nodes
from dumpcmp.shadows.program import Node, Program, ValueId
from dumpcmp.shadows.proving import Proof, StepProof
from dumpcmp.shadows.quantities import Quantity
from dumpcmp.shadows.starting import Before
from dumpcmp.shadows.together import read_program

_MOST_BYTES = 1 << 31  # of a step in float64, on both sides
_Form = tuple[int, str, str, tuple[int, ...]]  # rank, module, dtype and shape of a value
_PLAIN = frozenset(("eager", "fx", "aten", "compiled", "onnx"))


@dataclass(eq=False)
class StepPrograms:
    """What was asked of one step of both runs."""

    golden: Program
    target: Program
    proof: Proof

    def parted(self) -> Iterator[tuple[Site | None, Site]]:
        """Calls of the target, and golden's that they stand in for; None if it has none like it."""
        for found in self.proof.findings:
            if found.side != "target" or not (found.instead or found.is_extra):
                continue
            here = found.instead and Site(self.golden.model, self.golden.step, *found.instead)
            yield here, Site(self.target.model, self.target.step, found.op, found.call)


@dataclass(eq=False)
class RunValues:
    """What the values of one run are in float64, and which call made each."""

    side: Side
    programs: list[Program] = field(default_factory=list)
    quantities: dict[ValueId, Quantity] = field(default_factory=dict)
    firsts: dict[ValueId, ValueId] = field(default_factory=dict)
    gradients: dict[ValueId, Node] = field(default_factory=dict)  # of ranks: by their own calls
    is_in_parts: bool = False  # microbatches
    names: Mapping[Key, Key] = field(default_factory=dict)  # of weights at the end: the effect

    def add(
        self,
        program: Program,
        quantities: Mapping[ValueId, Quantity],
        *,
        has_gradients: bool,
    ) -> None:
        """Take a step, whose program may lack the gradients that its calls hand back."""
        self.programs.append(program)
        self.firsts |= program.places
        self.quantities |= quantities
        self.is_in_parts |= program.num_parts > 1
        if not has_gradients:
            for node in gradient_nodes(program):
                self.gradients |= dict.fromkeys(node.gives.values(), node)

    def places(self, key: Key) -> Iterator[ValueId]:
        """The values that ranks have under a name."""
        for record in self.side.listing.values.get(key, ()):
            first = record.same_as if record.key.op.is_effect else None
            place = ValueId(record.rank, self.names.get(record.key, first or record.key))
            yield self.firsts.get(place, place)

    def quantity(self, key: Key) -> Hashable | None:
        """What a value is, on all ranks that have it; None where that is not known."""
        found = tuple(
            id(each) if each else None for each in map(self.quantities.get, self.places(key))
        )
        if not found or None in found:
            return None
        return found[0] if len(set(found)) == 1 else found

    def sole(self, key: Key) -> Quantity | None:
        """What a value is that lies whole on one rank."""
        held = [self.quantities.get(place) for place in self.places(key)]
        return held[0] if len(held) == 1 else None

    def producer(self, place: ValueId) -> Node | None:
        """The call that made a value."""
        found = (program.producers.get(place) for program in self.programs)
        return next(filter(None, found), None) or self.gradients.get(place)

    def is_put_aside(self, key: Key) -> bool:
        """Whether nothing that was recorded takes a value, which the run does not leave behind."""
        places = list(self.places(key))
        left = {effect.value for program in self.programs for effect in program.effects}
        return left.isdisjoint(places) and not any(
            True for place in places for _ in self.consumers(place)
        )

    def consumers(self, place: ValueId) -> Iterator[Node]:
        """The calls that took a value."""
        for program in self.programs:
            yield from program.consumers.get(place, ())


@dataclass(eq=False)
class Programs:
    """The programs of all steps so far."""

    counting: Counting
    is_asked: bool  # whether both programs are to be run in float64
    levels: tuple[str, ...] = ()  # that are declared
    remarks: dict[str, None] = field(default_factory=dict)
    _before: dict[str, tuple[int, Before | None]] = field(default_factory=dict)

    def of_span(
        self, golden: Side, target: Side
    ) -> tuple[list[StepPrograms], RunValues, RunValues]:
        """The programs of some steps, and what is known of the values of either side."""
        found: list[StepPrograms] = []
        ours, theirs = RunValues(golden), RunValues(target)
        is_asked = self.is_asked and _is_plain(golden) and _is_plain(target)
        for one, other in _steps(golden, target, self.counting):
            if one is None or other is None:
                self._read_alone(ours if one else theirs, one or other)
                continue
            is_closed = is_asked and _is_closed(golden, one) and _is_closed(target, other)
            is_open = is_closed and _bytes_of(golden, one) != _bytes_of(target, other)
            step = self._asked(ours, theirs, one, other) if is_open else None
            if step is None:
                self._read_alone(ours, one)
                self._read_alone(theirs, other)
            else:
                found.append(step)
        return found, ours, theirs

    def _read_alone(self, run: RunValues, step: StepName | None) -> None:
        """Read a step of which nobody asks what it computes."""
        assert step is not None
        program = read_program(run.side.archive, *step, _parts(run.side, step))
        run.add(program, {}, has_gradients=False)

    def _asked(
        self, golden: RunValues, target: RunValues, one: StepName, other: StepName
    ) -> StepPrograms | None:
        proof = Proof()
        number, before = self._before.get(one[0], (-1, None))
        sides = golden.side, target.side
        asked = StepProof(
            sides[0].archive,
            sides[1].archive,
            proof,
            before if number == one[1] - 1 else None,
            self.levels,
            (_parts(sides[0], one), _parts(sides[1], other)),
        )
        try:
            self._before[one[0]] = one[1], asked.ask(one, other)
        except DumpcmpError as error:  # its values are judged by their numbers and calls
            self.remarks[f"the programs could not be run in float64: {error.message}"] = None
            return None
        self.remarks |= dict.fromkeys(proof.remarks)
        if not asked.shadows:
            return None
        ours, theirs = asked.shadows
        golden.add(ours.program, ours.quantities, has_gradients=True)
        target.add(theirs.program, theirs.quantities, has_gradients=True)
        return StepPrograms(ours.program, theirs.program, proof)


def _parts(side: Side, name: StepName) -> list[StepName]:
    """The recorded steps that a step is made of, where it is none of them alone."""
    found = {
        record.key.site[:2]
        for key, records in side.listing.values.items()
        if key.site[:2] == name
        for record in records
    }
    return sorted(found) if found - {name} else []


def _steps(
    golden: Side, target: Side, counting: Counting
) -> Iterator[tuple[StepName | None, StepName | None]]:
    """The steps of both sides, each under its own name; None where one lacks it."""
    mine: dict[StepName, StepName] = {}
    for site in target.listing.sites:
        name = counting.names.get(site.model, site.model)
        mine.setdefault((name, counting.in_golden_terms(site.model, site.step)), site[:2])
    for place in dict.fromkeys(site[:2] for site in golden.listing.sites):
        yield place, mine.pop(place, None)
    yield from ((None, place) for place in mine.values())


def _is_plain(side: Side) -> bool:
    """Whether every op that a side ran was to be recorded."""
    runs = [facts.get("run", {}) for facts in side.archive.run.values()]
    tap = Asking.of(side.archive).tap
    return (
        not side.facts.stopped
        and all(run.get("mode") in _PLAIN for run in runs)
        and not tap.layers
        and tap.io is Io.ALL
        and tap.level is Level.FUNCTIONS
    )


def _is_closed(side: Side, place: StepName) -> bool:
    """Whether all values of a step are kept, and it is not too large to be run in float64."""
    held = [
        record
        for key, records in side.listing.values.items()
        if (key.model, key.step) == place
        for record in records
    ]
    taken = {_form(record) for record in held if record.key.slot.is_input and _is_whole(record)}
    if not all(_is_kept(each) or _is_weight_in(each, taken) for each in held):
        return False
    nbytes = sum(8 * math.prod(each.shape) * (each.same_as is None) for each in held)
    return 2 * nbytes <= _MOST_BYTES


def _is_weight_in(record: Record, taken: Container[_Form]) -> bool:
    """Whether it is a weight that is whole where a graph took it."""
    return record.key.slot.is_weight and _form(record) in taken


def _form(record: Record) -> _Form:
    return record.rank, record.key.op.module, record.dtype, record.shape


def _is_whole(record: Record) -> bool:
    return record.kept is Kept.FULL and record.same_as is None


def _bytes_of(side: Side, place: StepName) -> dict[tuple[Op, int, Slot, int], str]:
    """The digest of each value of a step: where both sides have all, nothing is left to ask."""
    return {
        (key.op, key.call, key.slot, record.rank): record.digest
        for key, records in side.listing.values.items()
        if (key.model, key.step) == place
        for record in records
    }


def _is_kept(record: Record) -> bool:
    return record.kept is not Kept.SUMMARY or record.same_as is not None
