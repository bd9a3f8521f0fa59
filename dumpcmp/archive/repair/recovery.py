"""Mends a part that a crash or a full disk has left without its index: in place, no copy."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dumpcmp.archive import journal
from dumpcmp.archive.directory import part_name, parts_in
from dumpcmp.archive.escaping import group_path, link_name
from dumpcmp.archive.read.contents import Contents, FormFacts, read_index
from dumpcmp.archive.read.decoder import PartFile
from dumpcmp.archive.read.scan import Found, journal_records, part_facts, scan
from dumpcmp.archive.write.form import Form
from dumpcmp.archive.write.groups import call_json
from dumpcmp.archive.write.part import JOURNAL_AT, LOST_PATH, ROW, Elsewhere, Part
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Record


@dataclass(frozen=True, slots=True)
class Recovered:
    """What came of mending a part."""

    num_records: int
    num_from_ring: int
    num_lost: int


def recover(path: Path, stranded: list[Found], others: dict[int, Contents]) -> Recovered:
    """Seal the part at `path` with all that its journal and the ring hold for it.

    `others` are the contents of the other parts of the step, to which it may link.
    """
    with PartFile(path) as file:
        contents = scan(file, stranded)
        records = list(journal_records(file, []))
        facts = part_facts(file)
    nonce = records[0].fields.nonce
    part = Part.resume(path, facts, nonce)
    mending = _Mending(part, contents, others)
    for found in records:
        mending.keep(found)
    part.end = max((found.end for found in records), default=JOURNAL_AT)
    kept = mending.num_rows
    for found in stranded:
        if found.fields.nonce == nonce:
            mending.add(found)
    mending.leave_room(len(contents.rows))
    part.seal()
    return Recovered(mending.num_rows, mending.num_rows - kept, mending.num_lost)


def rescue(path: Path) -> None:
    """Seal a part that its own writer had to give up, where the disk has room for it again."""
    earlier = {number: other for number, other in parts_in(path.parent).items() if other != path}
    others: dict[int, Contents] = {}
    for number, other in earlier.items():
        with PartFile(other) as file:
            if (contents := read_index(file)) is not None:
                others[number] = contents
    with suppress(OSError, ArchiveError, KeyError):  # its journal still has everything
        recover(path, [], others)


class _Mending:
    """Tells a resumed part what is in it already, then appends what is not."""

    def __init__(self, part: Part, contents: Contents, others: dict[int, Contents]) -> None:
        self.part, self.contents, self.others = part, contents, others
        self.num_lost = 0
        self.calls = contents.calls()
        self.forms = [_form(facts) for facts in contents.forms]

    @property
    def num_rows(self) -> int:
        return len(self.part.rows) // ROW.size

    def keep(self, found: Found) -> None:
        """Take a record that lies in the part: nothing is written."""
        fields, kind = found.fields, found.fields.kind
        self.part.sequence = max(self.part.sequence, fields.sequence + 1)
        if kind == journal.CALL:
            self._declare_calls(fields.call)
        elif kind == journal.FORM:
            self._declare_forms(fields.form)
        elif kind in (journal.VALUE, journal.LINK) and self._is_next(fields.row):
            row = self.contents.rows[fields.row].item()
            if kind == journal.LINK:
                self.part.add_link(*self._numbers(row), *self._target(row))
            else:
                self.part.add_value(*self._numbers(row), found.start, row[6], row[8])

    def add(self, found: Found) -> None:
        """Append a record that only the ring has."""
        fields, kind = found.fields, found.fields.kind
        if kind == journal.CALL and fields.call >= len(self.part.calls):
            self._declare_calls(fields.call - 1)
            self.part.append_call(self.calls[fields.call])
        elif kind == journal.FORM and fields.form >= len(self.part.forms):
            self._declare_forms(fields.form - 1)
            self.part.append_form(self.forms[fields.form])
        elif kind in (journal.VALUE, journal.LINK) and self._is_next(fields.row):
            row = self.contents.rows[fields.row].item()
            if kind == journal.LINK:
                self.part.append_link(*self._numbers(row), *self._target(row))
            else:
                content = _read(found.file, found.data_start, fields.nbytes)
                self.part.append_value(*self._numbers(row), memoryview(content))

    def _is_next(self, row: int) -> bool:
        """Whether `row` is known and new; rows that were lost before it get their place."""
        if row < self.num_rows or not self.contents.has_row(row):
            return False
        self.leave_room(row)
        return True

    def leave_room(self, row: int) -> None:
        """Mark all rows before `row` that did not come as lost."""
        while self.num_rows < row:
            self.part.add_lost()
            self.num_lost += 1

    def _declare_calls(self, number: int) -> None:
        for each in range(len(self.part.calls), number + 1):
            if call := self.calls.get(each):
                self.part.add_call(call, call_json(call))
            else:
                self.part.add_lost_call()

    def _declare_forms(self, number: int) -> None:
        self.part.forms += self.forms[len(self.part.forms) : number + 1]

    def _numbers(self, row: tuple[Any, ...]) -> tuple[int, Form, int, int]:
        call, number, order = row[:3]
        return call, self.forms[number], number, order

    def _target(self, row: tuple[Any, ...]) -> tuple[Part | Elsewhere, int, str]:
        """The part and row that a link leads to, and the path of its dataset there."""
        number, same = row[3], row[4]
        own = number == self.part.number
        holder = self.contents if own else self.others.get(number)
        if holder is None or not holder.has_row(same):
            lost = self.part.path.with_name(part_name(number))
            return Elsewhere(number, lost, None), same, LOST_PATH
        call, form = holder.rows[same].item()[:2]
        path = "/".join((*group_path(*holder.ops[call]), link_name(holder.forms[form].slot)))
        return self.part if own else Elsewhere(number, holder.path, holder.rows), same, path


def _form(facts: FormFacts) -> Form:
    key = Key("", 0, "", 0, facts.slot)
    return Form(
        Record(
            key, 0, facts.dtype, facts.shape, facts.stride, facts.storage_offset, facts.device,
            layout=facts.layout, kept=facts.kept, problem=facts.problem, stored=facts.stored,
            seen_in=facts.seen_in,
        )
    )  # fmt: skip


def _read(path: Path, start: int, nbytes: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, nbytes, start)
    finally:
        os.close(descriptor)
