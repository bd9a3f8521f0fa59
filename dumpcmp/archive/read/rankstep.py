"""One step as one rank wrote it: the Keys and Records of what its parts hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from dumpcmp.archive.read.contents import Contents
from dumpcmp.archive.schema import ABSENT, NO_ROW, Form
from dumpcmp.nouns.key import Key, Slot
from dumpcmp.nouns.record import Call, Kept, Location, Record

NameInStep = tuple[str, int, str]  # op, call and slot: a Key within its step
_BYTES_AT = 6  # the columns offset, nbytes and digest of a row


class _Link(NamedTuple):
    """The value that another one is: what it is called, and what is kept of it."""

    first: Key
    form: Form
    location: Location
    digest: str


@dataclass(eq=False)
class RankStep:
    """One step as one rank wrote it: its parts, and where in them each value is."""

    rank: int
    model: str
    step: int
    parts: dict[int, Contents]
    rows: dict[NameInStep, tuple[Contents, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for contents in self.parts.values():
            ops = contents.ops
            slots = [Slot(form.slot) for form in contents.forms]
            calls, forms = contents.rows["call"].tolist(), contents.rows["form"].tolist()
            for row, (call, form) in enumerate(zip(calls, forms, strict=True)):
                if call != ABSENT:
                    self.rows.setdefault((*ops[call], slots[form]), (contents, row))

    def calls(self) -> list[Call]:
        """The calls of the step, in order of execution; the first of a name stays."""
        found: dict[tuple[str, int], Call] = {}
        for contents in self.parts.values():
            for call in contents.calls().values():
                found.setdefault((call.op, call.call), call)
        return sorted(found.values(), key=attrgetter("order"))

    def names(self) -> list[NameInStep]:
        """The values of the step, in order of execution."""
        orders = {id(part): part.rows["order"].tolist() for part in self.parts.values()}
        order = {name: orders[id(part)][row] for name, (part, row) in self.rows.items()}
        return sorted(order, key=order.__getitem__)

    def record(self, key: Key) -> Record:
        """The Record of one value."""
        return _RecordMaker(self, Contents.row).record(key, *self.rows[key.op, key.call, key.slot])

    def records(self) -> Iterator[Record]:
        """The Records of all values, in order of execution."""
        listed = {id(part): part.rows.tolist() for part in self.parts.values()}
        keys = {name: Key(self.model, self.step, *name) for name in self.names()}
        reading = _RecordMaker(self, lambda part, row: listed[id(part)][row], keys)
        for name, key in keys.items():
            yield reading.record(key, *self.rows[name])


@dataclass(eq=False, slots=True)
class _RecordMaker:
    """Makes Records of rows, and each link once."""

    step: RankStep
    read: Callable[[Contents, int], tuple[Any, ...]]
    keys: Mapping[NameInStep, Key] = field(default_factory=dict)  # that are known already
    links: dict[tuple[int, int], _Link] = field(default_factory=dict)

    def record(self, key: Key, contents: Contents, row: int) -> Record:
        _, form, order, part, same, _, offset, nbytes, digest = self.read(contents, row)
        rank, facts = self.step.rank, contents.forms[form].facts
        holder, problem = self.step.parts.get(part), ""
        if holder is None:
            problem = f"part {part}, which holds its bytes, is missing"
        elif same == NO_ROW:
            place = holder.location(row, offset, nbytes)
            return Record(key, order, rank=rank, digest=_text(digest), location=place, **facts)
        elif (part, same) not in self.links and not holder.has_row(same):
            problem = f"row {same} of part {part}, which holds its bytes, was lost"
        if holder is None or problem:
            facts = {**facts, "kept": Kept.NOTHING, "problem": problem}
            return Record(key, order, rank=rank, digest=_text(digest), **facts)
        link = self.links.get((part, same)) or self._link(holder, part, same)
        held = link.form  # the row that has the bytes says what they are: perhaps a Summary
        told = held.problem or facts["problem"]
        facts = {**facts, "kept": held.kept, "stored": held.stored, "problem": told}
        return Record(
            key, order, rank=rank, same_as=link.first, digest=link.digest, location=link.location,
            **facts,
        )  # fmt: skip

    def _link(self, holder: Contents, part: int, row: int) -> _Link:
        columns, name = self.read(holder, row), holder.name(row)
        offset, nbytes, digest = columns[_BYTES_AT:]
        first = self.keys.get(name) or Key(self.step.model, self.step.step, *name)
        location = holder.location(row, offset, nbytes)
        found = _Link(first, holder.forms[columns[1]], location, _text(digest))
        self.links[part, row] = found
        return found


def _text(digest: bytes) -> str:
    return digest.decode("ascii", "replace")
