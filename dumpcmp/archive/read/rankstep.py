"""One step as one rank wrote it: its parts, whatever their state, and the Records in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dumpcmp.archive.encoder import SIGNATURE
from dumpcmp.archive.read.contents import Contents, read_index
from dumpcmp.archive.read.decoder import PartFile, root_address
from dumpcmp.archive.read.scan import Found, scan
from dumpcmp.archive.schema import ABSENT, JOURNAL_AT, NO_ROW, ROW_TYPE
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Kept, Location, Record

NameInStep = tuple[str, int, str]  # op, call and slot: a Key within its step


def read_part(path: Path, model: str, step: int, number: int, stranded: list[Found]) -> Contents:
    """What `path` holds: by its index, else by its journal, else, not being ours, by its groups."""
    with PartFile(path) as file:
        if file.nbytes <= JOURNAL_AT:
            return _nothing(file, model, step)
        try:
            root_address(file)
        except ArchiveError as error:
            return _read_other(file, model, step, number, error)
        damage: tuple[str, ...] = ()
        try:
            contents = read_index(file)
        except ArchiveError as error:
            contents, damage = None, (error.message,)
        if contents is None:
            contents = scan(file, stranded)
            contents.problems += damage
        contents.model, contents.step = model, step
        return contents


def _nothing(file: PartFile, model: str, step: int) -> Contents:
    """The contents of a part that ends before anything can be in it."""
    problem = f"{file.path} ends at byte {file.nbytes}, before its first record"
    return Contents(file.path, np.empty(0, ROW_TYPE), [], [], model, step, problems=(problem,))


def _read_other(
    file: PartFile, model: str, step: int, number: int, error: ArchiveError
) -> Contents:
    """A part whose superblock is not ours: damaged, if the journal is; else some other writer's."""
    try:
        contents = scan(file, [])
    except ArchiveError:
        if file.peek(0, 8) != SIGNATURE or file.peek(8, 1) == b"\0" == file.peek(80, 1):
            raise error from None
        from dumpcmp.archive.read.walk import walk

        return walk(file.path, model, step, number)
    contents.problems += (error.message,)
    return contents


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
            slots = [form.slot for form in contents.forms]
            calls, forms = contents.rows["call"].tolist(), contents.rows["form"].tolist()
            for row, (call, form) in enumerate(zip(calls, forms, strict=True)):
                if call != ABSENT:
                    self.rows.setdefault((*ops[call], slots[form]), (contents, row))

    def calls(self) -> dict[tuple[str, int], Call]:
        """The calls of the step, in order of execution."""
        found: dict[tuple[str, int], Call] = {}
        for contents in self.parts.values():
            for call in contents.calls().values():
                found.setdefault((call.op, call.call), call)
        return dict(sorted(found.items(), key=lambda entry: entry[1].order))

    def names(self) -> list[NameInStep]:
        """The values of the step, in order of execution."""
        order = {name: int(c.rows["order"][row]) for name, (c, row) in self.rows.items()}
        return sorted(order, key=order.__getitem__)

    def record(self, key: Key) -> Record:
        contents, row = self.rows[key.op, key.call, key.slot]
        _, form, order, part, same, _, offset, nbytes, digest = contents.rows[row].item()
        facts = contents.forms[form].facts
        holder = self.parts.get(part)
        if holder is None:
            facts = _gone(facts, f"part {part}, which holds its bytes, is missing")
        elif same != NO_ROW and not holder.has_row(same):
            facts = _gone(facts, f"row {same} of part {part}, which holds its bytes, was lost")
            holder = None
        elif same != NO_ROW:  # the row that has the bytes says what they are: perhaps a Summary
            offset, nbytes, digest = holder.rows[same].item()[6:]
            held = holder.forms[holder.rows[same]["form"]]
            facts = {**facts, "kept": held.kept, "stored": held.stored}
        first = holder.name(same) if holder and same != NO_ROW else None
        return Record(
            key,
            order,
            rank=self.rank,
            same_as=Key(self.model, self.step, *first) if first else None,
            digest=digest.decode("ascii", "replace"),
            location=_location(contents, holder, row, same, offset, nbytes),
            **facts,
        )


def _gone(facts: dict[str, Any], problem: str) -> dict[str, Any]:
    return {**facts, "kept": Kept.NOTHING, "problem": problem}


def _location(
    contents: Contents, holder: Contents | None, row: int, same: int, offset: int, nbytes: int
) -> Location | None:
    if holder is None:
        return None
    if holder is not contents:
        contents, row = holder, same
    if row in contents.elsewhere:
        path, offset = contents.elsewhere[row]
        return Location(path, offset, nbytes)
    return Location(contents.path, offset, nbytes, contents.datasets.get(row, ""))
