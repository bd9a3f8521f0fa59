"""One step as one rank wrote it: its parts, whatever their state, and the Records in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dumpcmp.archive.encoder import SIGNATURE
from dumpcmp.archive.read.contents import ABSENT, Contents, read_index
from dumpcmp.archive.read.decoder import PartFile, root_address
from dumpcmp.archive.read.scan import Found, scan
from dumpcmp.archive.schema import NO_ROW
from dumpcmp.archive.write.part import JOURNAL_AT, ROW_TYPE
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Kept, Location, Record

Name = tuple[str, int, str]  # op, call and slot: a Key within its step


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
    rows: dict[Name, tuple[Contents, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for contents in self.parts.values():
            ops = contents.ops
            slots = [form.slot for form in contents.forms]
            calls, forms = contents.rows["call"].tolist(), contents.rows["form"].tolist()
            for row, (call, form) in enumerate(zip(calls, forms, strict=True)):
                if call != ABSENT:
                    self.rows.setdefault((*ops[call], slots[form]), (contents, row))

    @property
    def problems(self) -> Iterator[str]:
        """What is wrong with the parts."""
        for contents in self.parts.values():
            yield from contents.problems

    def calls(self) -> dict[tuple[str, int], Call]:
        """The calls of the step, in order of execution."""
        found: dict[tuple[str, int], Call] = {}
        for contents in self.parts.values():
            for call in contents.calls().values():
                found.setdefault((call.op, call.call), call)
        return dict(sorted(found.items(), key=lambda entry: entry[1].order))

    def names(self) -> list[Name]:
        """The values of the step, in order of execution."""
        order = {name: int(c.rows["order"][row]) for name, (c, row) in self.rows.items()}
        return sorted(order, key=order.__getitem__)

    def record(self, name: Name) -> Record:
        """The Record of the value `name`."""
        contents, row = self.rows[name]
        _, form, order, part, same, _, offset, nbytes, digest = contents.rows[row].item()
        facts = contents.forms[form]
        holder, problem = self.parts.get(part), facts.problem
        if holder is None:
            problem = f"part {part}, which holds its bytes, is missing"
        elif same != NO_ROW and not holder.has_row(same):
            holder, problem = None, f"row {same} of part {part}, which holds its bytes, was lost"
        held = facts  # what the row that has the bytes says of them: they may be a Summary's
        if holder and same != NO_ROW:
            offset, nbytes, digest = holder.rows[same].item()[6:]
            held = holder.forms[holder.rows[same]["form"]]
        return Record(
            Key(self.model, self.step, *name),
            order,
            facts.dtype,
            facts.shape,
            facts.stride,
            facts.storage_offset,
            facts.device,
            self.rank,
            facts.layout,
            self._same_as(holder, same),
            held.kept if holder else Kept.NOTHING,
            problem,
            digest.decode("ascii", "replace"),
            self._location(contents, holder, row, same, offset, nbytes),
            held.stored,
            facts.seen_in,
        )

    def _same_as(self, holder: Contents | None, row: int) -> Key | None:
        if holder is None or not holder.has_row(row):
            return None
        call, form = holder.rows[row].item()[:2]
        op, number = holder.ops[call]
        return Key(self.model, self.step, op, number, holder.forms[form].slot)

    @staticmethod
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
