"""One step as one rank wrote it: the Keys and Records of what its parts hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from dumpcmp.archive.read.contents import Contents
from dumpcmp.archive.schema import ABSENT, NO_ROW, ROW_TYPE, Form
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Kept, Location, Record

NameInStep = tuple[str, int, str]  # op, call and slot: a Key within its step
_AT_ONCE = 4096  # rows that are told of together
_MOST_NAMES = 1 << 12  # of a step whose Keys are shared
_MOST_STEPS = 64
_BYTES_AT = 6  # the columns offset, nbytes and digest of a row


class _Link(NamedTuple):
    """The value that another one is: what it is called, and what is kept of it."""

    first: Key
    form: Form
    location: Location
    digest: str


class SharedKeys:
    """The Keys of steps that were listed lately: both sides of a comparison name most values alike.

    What is one object is found in a dictionary without being compared field by field.
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[str, int], dict[NameInStep, Key]] = {}

    def keys(self, model: str, step: int, names: Sequence[NameInStep]) -> dict[NameInStep, Key]:
        """The Keys of all `names` of a step."""
        known = self._steps.get((model, step), {})
        found = {name: known.get(name) or Key(model, step, *name) for name in names}
        if len(found) <= _MOST_NAMES:
            if len(self._steps) >= _MOST_STEPS:
                self._steps.clear()
            self._steps[model, step] = found
        return found

    def forget(self) -> None:
        """Let go of them: the steps are done with."""
        self._steps.clear()


SHARED_KEYS = SharedKeys()


@dataclass(eq=False)
class RankStep:
    """One step as one rank wrote it: its parts, and where in them each value is."""

    rank: int
    model: str
    step: int
    parts: dict[int, Contents]

    def place_of(self, name: NameInStep) -> tuple[Contents, int] | None:
        """The part and the row of a value; the first of a name stays."""
        for contents in self.parts.values():
            row = contents.places.get(name)
            if row is not None:
                return contents, row
        return None

    def placed(self, effects: bool = False) -> Iterator[tuple[NameInStep, Contents, int]]:
        """The values of the step, each once, in order of execution, and where they are.

        Those of its ops, or of its `effects`.
        """
        seen: set[NameInStep] = set()
        for contents, row, call, form in self._in_order():
            if (call in contents.effects) is not effects:
                continue
            name = *contents.ops[call], contents.slots[form]
            if name not in seen:
                seen.add(name)
                yield name, contents, row

    def _in_order(self) -> Iterator[tuple[Contents, int, int, int]]:
        """The rows that were not lost, in order of execution, and call and form of each."""
        parts = list(self.parts.values())
        tables = [part.rows[["call", "form", "order"]] for part in parts]
        sizes = list(map(len, tables))
        held = np.repeat(np.arange(len(parts)), sizes)
        rows = np.concatenate([np.arange(0), *map(np.arange, sizes)])
        table = np.concatenate(tables) if tables else np.empty(0, ROW_TYPE)
        order = np.argsort(table["order"], kind="stable")
        order = order[table["call"][order] != ABSENT]
        for start in range(0, len(order), _AT_ONCE):
            chosen = order[start : start + _AT_ONCE]
            columns = (held, rows, table["call"], table["form"])
            numbers = (column[chosen].tolist() for column in columns)
            yield from ((parts[n], *rest) for n, *rest in zip(*numbers, strict=True))

    @property
    def num_values(self) -> int:
        """How many rows there are of values that were not lost."""
        columns = (contents.rows["call"] for contents in self.parts.values())
        return sum(int((column != ABSENT).sum()) for column in columns)

    def calls(self, effects: bool = False) -> list[Call]:
        """The calls of the step, in order of execution; the first of a name stays.

        Those of its ops, or its `effects`.
        """
        found: dict[tuple[str, int], Call] = {}
        for contents in self.parts.values():
            for number, call in contents.calls().items():
                if (number in contents.effects) is effects:
                    found.setdefault((call.op, call.call), call)
        return sorted(found.values(), key=attrgetter("order"))

    def names(self, op: str = "") -> Iterator[NameInStep]:
        """The values of the step, in order of execution; those of one `op`, where it is named."""
        return (name for name, _, _ in self.placed() if not op or name[0] == op)

    def record(self, key: Key) -> Record:
        """The Record of one value."""
        place = self.place_of((key.op, key.call, key.slot))
        if place is None:
            raise KeyError(key)
        return _RecordMaker(self, Contents.row).record(key, *place)

    def records(self, effects: bool = False) -> Iterator[Record]:
        """The Records of all values of ops, or of effects, in order of execution."""
        listed = {id(part): part.rows.tolist() for part in self.parts.values()}
        placed = list(self.placed(effects))
        names = [name for name, _, _ in placed]
        if effects:
            keys = {name: Key(self.model, self.step, *name) for name in names}
        else:
            keys = SHARED_KEYS.keys(self.model, self.step, names)
        reading = _RecordMaker(self, lambda part, row: listed[id(part)][row], keys)
        for name, part, row in placed:
            yield reading.record(keys[name], part, row)


@dataclass(eq=False, slots=True)
class _RecordMaker:
    """Makes Records of rows, and each link once."""

    step: RankStep
    read: Callable[[Contents, int], tuple[Any, ...]]
    keys: Mapping[NameInStep, Key] = field(default_factory=dict)  # that are known already
    links: dict[tuple[int, int], _Link] = field(default_factory=dict)

    def record(self, key: Key, contents: Contents, row: int) -> Record:
        _, number, order, part, same, _, offset, nbytes, digest = self.read(contents, row)
        rank, form = self.step.rank, contents.forms[number]
        holder, problem = self.step.parts.get(part), ""
        if holder is None:
            problem = f"part {part}, which holds its bytes, is missing"
        elif same == NO_ROW and row not in holder.missing:
            place = holder.location(row, offset, nbytes)
            return _record(key, order, rank, form, form, None, _text(digest), place)
        elif same == NO_ROW or same in holder.missing:
            problem = holder.missing[row if same == NO_ROW else same]
        elif (part, same) not in self.links and not holder.has_row(same):
            problem = f"row {same} of part {part}, which holds its bytes, was lost"
        if holder is None or problem:
            facts = {**form.facts, "kept": Kept.NOTHING, "problem": problem}
            return Record(key, order, rank=rank, digest=_text(digest), **facts)
        link = self.links.get((part, same)) or self._link(holder, part, same)
        held = link.form  # the row that has the bytes says what they are: perhaps a Summary
        return _record(key, order, rank, form, held, link.first, link.digest, link.location)

    def _link(self, holder: Contents, part: int, row: int) -> _Link:
        columns, name = self.read(holder, row), holder.name(row)
        offset, nbytes, digest = columns[_BYTES_AT:]
        first = self.keys.get(name) or Key(self.step.model, self.step.step, *name)
        location = holder.location(row, offset, nbytes)
        found = _Link(first, holder.forms[columns[1]], location, _text(digest))
        self.links[part, row] = found
        return found


def _record(
    key: Key,
    order: int,
    rank: int,
    form: Form,
    held: Form,
    first: Key | None,
    digest: str,
    place: Location,
) -> Record:
    """The Record of a value of one `form`, of which the bytes are `held` as another one says.

    Names of fields would take half as long again, of every value that is listed.
    """
    return Record(
        key, order, form.dtype, form.shape, form.stride, form.storage_offset, form.device, rank,
        form.layout, first, held.kept, held.problem or form.problem, digest, place, held.stored,
        form.seen_in,
    )  # fmt: skip


def _text(digest: bytes) -> str:
    return digest.decode("ascii", "replace")
