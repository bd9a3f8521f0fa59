"""Mends a part that a crash or a full disk has left without its index: in place, no copy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from dumpcmp.archive import journal
from dumpcmp.archive.directory import part_name, parts_in
from dumpcmp.archive.escaping import dataset_path
from dumpcmp.archive.journal import call_json
from dumpcmp.archive.read.contents import Contents, read_index
from dumpcmp.archive.read.decoder import PartFile
from dumpcmp.archive.read.scan import Found, journal_records, part_facts, scan
from dumpcmp.archive.schema import JOURNAL_AT
from dumpcmp.archive.write.part import LOST_PATH, Elsewhere, Owner, Part
from dumpcmp.archive.write.template import Template
from dumpcmp.nouns.errors import ArchiveError


def recover(path: Path, stranded: list[Found], others: dict[int, Contents]) -> int:
    """Seal the part at `path` with all that its journal and the ring hold for it: so many values.

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
        mending.take(found, new=False)
    part.end = max((found.end for found in records), default=JOURNAL_AT)
    for found in stranded:
        if found.fields.nonce == nonce:
            mending.take(found, new=True)
    mending.leave_room(len(contents.rows))
    part.seal()
    return part.num_rows - mending.num_lost


def rescue(path: Path) -> None:
    """Seal a part that its own writer had to give up, where the disk has room for it again."""
    others: dict[int, Contents] = {}
    for number, other in parts_in(path.parent).items():
        with suppress(ArchiveError), PartFile(other) as file:
            if other != path and (contents := read_index(file)) is not None:
                others[number] = contents
    with suppress(OSError, ArchiveError):  # its journal still has everything
        recover(path, [], others)


class _Mending:
    """Tells a resumed part what is in it already, and appends what is new: only in the ring."""

    def __init__(self, part: Part, contents: Contents, others: dict[int, Contents]) -> None:
        self.part, self.contents, self.others = part, contents, others
        self.num_lost = 0
        self.calls = contents.calls()
        self.forms = [Template(form) for form in contents.forms]

    def take(self, found: Found, *, new: bool) -> None:
        fields, kind = found.fields, found.fields.kind
        if not new:
            self.part.sequence = max(self.part.sequence, fields.sequence + 1)
        if kind == journal.CALL and fields.call >= len(self.part.calls):
            self._declare_calls(fields.call + (not new))
            if new:
                self.part.append_call(self.calls[fields.call])
        elif kind == journal.FORM and fields.form >= len(self.part.forms):
            self._declare_forms(fields.form + (not new))
            if new:
                self.part.append_form(self.forms[fields.form])
        elif kind in (journal.VALUE, journal.LINK) and self._is_next(fields.row):
            self._take_row(found, new)

    def _is_next(self, row: int) -> bool:
        return row >= self.part.num_rows and self.contents.has_row(row)

    def _take_row(self, found: Found, new: bool) -> None:
        self.leave_room(found.fields.row)
        row = self.contents.rows[found.fields.row].item()
        owner: Owner = (row[0], self.forms[row[1]], row[1], row[2])
        if found.fields.kind == journal.LINK:
            add_link = self.part.append_link if new else self.part.add_link
            add_link(owner, *self._target(row))
        elif new:
            with PartFile(found.file) as ring:
                content = ring.read(found.data_start, found.fields.nbytes)
            self.part.append_value(owner, memoryview(content))
        else:
            self.part.add_value(*owner, found.start, row[6], row[8])

    def leave_room(self, row: int) -> None:
        """Mark all rows before `row` that did not come as lost."""
        while self.part.num_rows < row:
            self.part.add_lost()
            self.num_lost += 1

    def _declare_calls(self, end: int) -> None:
        for number in range(len(self.part.calls), end):
            if call := self.calls.get(number):
                self.part.add_call(call, call_json(call))
            else:
                self.part.add_lost_call()

    def _declare_forms(self, end: int) -> None:
        self.part.forms += self.forms[len(self.part.forms) : end]

    def _target(self, row: tuple[Any, ...]) -> tuple[Part | Elsewhere, int, str]:
        """The part and row that a link leads to, and the path of its dataset there."""
        number, same = row[3], row[4]
        own = number == self.part.number
        holder = self.contents if own else self.others.get(number)
        if holder is None or not holder.has_row(same):
            lost = self.part.path.with_name(part_name(number))
            return Elsewhere(number, lost, None), same, LOST_PATH
        path = dataset_path(*holder.name(same))
        return self.part if own else Elsewhere(number, holder.path, holder.rows), same, path
