"""Both programs of a step in exact arithmetic, each from its own start, and which values match."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.row import Row, Why
from dumpcmp.nouns.value import DTYPES, Kind
from dumpcmp.shadows.gradient_sums import with_gradients
from dumpcmp.shadows.kernel_checks import load_value
from dumpcmp.shadows.program import Node, Program, ValueId
from dumpcmp.shadows.proving import StepOfModel
from dumpcmp.shadows.quantities import Application, Book, Quantity
from dumpcmp.shadows.shadow import Choices, Shadow, identity
from dumpcmp.shadows.starting import Start
from dumpcmp.shadows.together import read_program

OnRank = tuple[int, int]  # a rank of the target, and the id of a quantity of golden's
TakenAt = tuple[int, int, str]  # a rank, the id of an application, and a slot of it

_MOST_BYTES = 1 << 31  # of both runs in float64


class CallBook(Book):
    """A Book that shares nothing between two calls of a run, so that each can be changed alone.

    What both runs compute in calls of one name is shared, but for those that stand `apart`.
    """

    def __init__(self, apart: frozenset[str]) -> None:
        super().__init__()
        self.apart, self.side = apart, "target"
        self._asked: dict[Hashable, Mapping[str, Quantity]] = {}

    def computed(
        self, expression: Hashable, application: Callable[[], Application]
    ) -> Mapping[str, Quantity]:
        """What an operation gives, by slot; for each call by itself."""
        made = application()
        side = self.side if made.name in self.apart else ""
        found = super().computed((expression, made.name, side), lambda: made)
        self._asked[expression] = found
        return found

    def known(self, expression: Hashable) -> Mapping[str, Quantity] | None:
        """What an operation gives, if any call has asked for it."""
        return self._asked.get(expression)


class WrongCall(NamedTuple):
    """A value that a call did not compute as it should, and the row that says so."""

    is_golden: bool
    node: Node
    value: ValueId
    row: Row


@dataclass(eq=False)
class ExactSides:
    """Golden's and the target's program of one step, and which quantities match."""

    golden: Shadow
    target: Shadow
    matched: dict[int, Quantity] = field(default_factory=dict)  # by id of the target's: golden's
    counterparts: dict[OnRank, Quantity] = field(default_factory=dict)  # the target's
    ranks: dict[int, int] = field(default_factory=dict)  # by id of the target's that match
    earlier: dict[int, Quantity] = field(default_factory=dict)  # by id of the target's: another of
    # the target's that matches the same of golden's, and of which it is computed
    taken: dict[TakenAt, Quantity] = field(default_factory=dict)  # the target's, where golden's
    # call takes its own
    values: list[tuple[ValueId, ValueId]] = field(default_factory=list)  # golden's, the target's
    own: set[int] = field(default_factory=set)  # ids of all that the target has
    wrong: Sequence[WrongCall] = ()  # calls whose kernels were found wrong

    def counterpart(self, rank: int, golden: Quantity) -> Quantity | None:
        """What a rank of the target has in place of a quantity of golden's."""
        return golden if id(golden) in self.own else self.counterparts.get((rank, id(golden)))

    @property
    def are_alike(self) -> bool:
        """Whether both ran on the same ranks."""
        return self.golden.program.ranks == self.target.program.ranks

    def bridged(self, value: ValueId) -> bool:
        """Whether the target's own call is not known, or cannot be run, and golden's can."""
        quantity = self.target.quantity(value)
        if not _is_float(self.target, value):
            return False
        if quantity.application is not None:
            return quantity.is_bridge
        node, golden = self.target.program.producers.get(value), self.matched.get(id(quantity))
        is_made = node is not None and bool(node.takes)
        return is_made or (golden is not None and golden.application is not None)


def exact_sides(
    archives: tuple[Archive, Archive],
    steps: tuple[StepOfModel, StepOfModel],
    rows: Sequence[Row],
) -> ExactSides:
    """Follow both programs of a step, whose values `rows` pair."""
    programs = tuple(_program(a, *s) for a, s in zip(archives, steps, strict=True))
    _check_size(programs)
    matches = list(_matches(rows, *programs))
    alone = frozenset(
        target
        for golden, target, _ in matches
        if programs[0].records[golden].digest != programs[1].records[target].digest
    )
    wrong = [found for row in rows for found in _wrong_calls(row, *programs)]
    book, choices = CallBook(frozenset(str(each.node) for each in wrong)), Choices()
    start = Start(book)
    start.know("golden", programs[0])
    start.know("target", programs[1])
    mine = Shadow(
        archives[1], programs[1], book, partial(_leaf, alone), choices,
        partial(start.precomputed, "golden"),
    )  # fmt: skip
    for leaf in mine.program.leaves:
        mine.quantity(leaf)
    mine.follow()
    choices.singles = mine.singles
    book.side = "golden"
    its = Shadow(
        archives[0], programs[0], book, partial(_leaf, frozenset()), choices.copy(),
        partial(start.precomputed, "target"),
    ).follow()  # fmt: skip
    return _matched(ExactSides(its, mine, wrong=wrong), matches)


def _wrong_calls(row: Row, golden: Program, target: Program) -> Iterator[WrongCall]:
    """What a row says of single calls: that one, on whatever ranks, gave something wrong."""
    why = row.judgement.why
    if not row.verdict.fails or why not in (Why.INTRODUCED, Why.GOLDEN):
        return
    is_golden = why is Why.GOLDEN
    program, key = (golden, row.golden_key) if is_golden else (target, row.target_key)
    for rank in sorted(program.ranks) if key is not None else ():
        assert key is not None
        value = program.places.get(ValueId(rank, key))
        node = None if value is None else program.producers.get(value)
        if value is not None and node is not None:
            yield WrongCall(is_golden, node, value, row)


def _program(archive: Archive, model: str, step: int) -> Program:
    program = read_program(archive, model, step)
    if program.unlinked:
        raise DumpcmpError(
            f"{archive.path}: {program.unlinked}", hint="dump again with this version of dumpcmp"
        )
    if program.is_whole:
        program = with_gradients(program, partial(load_value, archive, program))
    is_known = program.producers if program.is_whole else ()
    effects = [each for each in program.effects if not each.is_state or each.value in is_known]
    program.effects = effects
    return program


def _check_size(programs: Sequence[Program]) -> None:
    records = [record for each in programs for record in each.records.values()]
    nbytes = sum(8 * math.prod(record.shape) for record in records)
    if nbytes > _MOST_BYTES:
        raise DumpcmpError(
            f"a step has {nbytes / 2**30:.1f} GiB in float64, more than {_MOST_BYTES / 2**30:.0f}",
            hint="dump fewer rows of the batch or a shorter prompt, on both sides",
        )


def _leaf(alone: frozenset[ValueId], shadow: Shadow, value: ValueId) -> Quantity:
    """A leaf as it was recorded; those that differ between the runs share theirs with no other."""
    record = shadow.record(value)
    known = identity(record)
    return shadow.book.leaf((known, value) if value in alone else known, shadow.loader(value))


def _is_float(shadow: Shadow, value: ValueId) -> bool:
    dtype = shadow.record(value).dtype
    return dtype in DTYPES and DTYPES[dtype].kind in (Kind.FLOAT, Kind.COMPLEX)


def _matches(
    rows: Sequence[Row], golden: Program, target: Program
) -> Iterator[tuple[ValueId, ValueId, Row]]:
    """Values of the same shape that rows pair: what functions give, then modules, then the rest.

    Of what ranks compute together, nobody knows call by call which is golden's: leaves alone match.
    """
    are_alike = golden.ranks == target.ranks
    for row in sorted(rows, key=_how_telling):
        if row.golden_key is None or row.target_key is None:
            continue
        for rank in sorted(target.ranks):
            theirs = target.places.get(ValueId(rank, row.target_key))
            own = next(_on_ranks(golden, row.golden_key, rank), None)
            if theirs is None or own is None:
                continue
            is_known = are_alike or theirs not in target.producers
            if is_known and golden.records[own].shape == target.records[theirs].shape:
                yield own, theirs, row


def _on_ranks(golden: Program, key: Key, rank: int) -> Iterator[ValueId]:
    for each in (rank, *sorted(golden.ranks)):
        if (found := golden.places.get(ValueId(each, key))) is not None:
            yield found


def _how_telling(row: Row) -> int:
    slot, is_module = row.key.slot, row.key.op.is_module
    return (2 if is_module else 0) + (1 if slot.is_gradient else 0) if not slot.is_input else 4


def _matched(sides: ExactSides, matches: Sequence[tuple[ValueId, ValueId, Row]]) -> ExactSides:
    golden, target = sides.golden, sides.target
    sides.own = {id(each) for each in target.quantities.values()}
    calls = {(n.rank, n.call.op, n.call.call): n for n in golden.program.nodes if n.own is None}
    order = {node: at for at, node in enumerate(target.program.nodes)}
    seen: set[OnRank] = set()
    for ours, theirs, row in matches:
        one, other = golden.quantity(ours), target.quantity(theirs)
        if sides.matched.get(id(other), one) is not one:
            continue  # it has a match that tells more: the target took another value than golden
        if id(other) not in sides.matched:
            if (theirs.rank, id(one)) in seen and _makes_both(golden, target, theirs):
                continue
            seen.add((theirs.rank, id(one)))
            sides.matched[id(other)], sides.ranks[id(other)] = one, theirs.rank
            sides.values.append((ours, theirs))
        key, place = row.golden_key, row.target_key
        if key is None or place is None or key.op.function != place.op.function:
            continue
        if key.slot.is_input and place.slot.is_input:
            call = calls.get((ours.rank, key.op, key.call))
            _take(sides, call, theirs.rank, str(key.slot), other)
    sides.values.sort(key=lambda pair: _position(target.program, pair[1], order))
    for ours, theirs in sides.values:  # of several the last, which is computed of the others
        one, other = golden.quantity(ours), target.quantity(theirs)
        before = sides.counterparts.setdefault((theirs.rank, id(one)), other)
        if before is not other and _is_behind(before, other):
            sides.earlier[id(other)] = before
            sides.counterparts[theirs.rank, id(one)] = other
    return sides


def _makes_both(golden: Shadow, target: Shadow, value: ValueId) -> bool:
    """Whether golden makes the call, too, that gives a value of the target's."""
    node = target.program.producers.get(value)
    return node is not None and any(
        (each.call.op, each.call.call, each.call.target)
        == (node.call.op, node.call.call, node.call.target)
        for each in golden.program.nodes
    )


def _is_behind(quantity: Quantity, later: Quantity) -> bool:
    """Whether `later` is computed of `quantity`."""
    seen: set[int] = set()
    waiting = [later]
    while waiting:
        each = waiting.pop()
        if each is quantity:
            return True
        if id(each) not in seen:
            seen.add(id(each))
            waiting += each.inputs
    return False


def _position(program: Program, value: ValueId, order: Mapping[Node, int]) -> int:
    node = program.producers.get(value)
    return -1 if node is None else order[node]


def _take(sides: ExactSides, node: Node | None, rank: int, slot: str, other: Quantity) -> None:
    for value in node.gives.values() if node is not None else ():
        made = sides.golden.quantity(value).application
        given = None if node is None else node.takes.get(slot)
        if made is None or slot not in made.inputs or given is None:
            continue
        if made.inputs[slot] is sides.golden.quantity(given):  # a cast is no call of its own
            sides.taken[rank, id(made), slot] = other
