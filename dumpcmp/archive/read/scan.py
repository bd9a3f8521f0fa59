"""A part in whatever state: by its index, by its journal after a crash, or by its groups."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dumpcmp.archive import schema
from dumpcmp.archive.encoder import SIGNATURE, padded
from dumpcmp.archive.paths import HEADER_NBYTES, RING_HEADER, RING_MAGIC
from dumpcmp.archive.read.contents import LISTED_LOST, Contents, ListedCalls, read_forms
from dumpcmp.archive.read.part_index import read_index
from dumpcmp.archive.read.partfile import PartFile, root_address
from dumpcmp.archive.read.remote import opened
from dumpcmp.archive.schema import (
    ABSENT,
    ALIGNMENT,
    JOURNAL_AT,
    MAGIC,
    NO_ROW,
    PREFIX_HEADER,
    SHARED,
)
from dumpcmp.nouns.errors import ArchiveError

_MOST_IN_RING = 1 << 22
_STRIDE = 1 << 20  # bytes looked through at once for the next record

Fields = namedtuple("Fields", [n for n, _, _ in schema.JOURNAL_FIELDS])  # type: ignore[misc]


@dataclass(frozen=True)
class Found:
    """A journal record as found: its fields, its prefix, and where its bytes are."""

    fields: Any
    prefix: bytes
    start: int  # of the prefix
    file: Path

    @property
    def data_start(self) -> int:
        """Where the bytes after the prefix begin."""
        return self.start + len(self.prefix)

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return int(self.data_start + padded(self.fields.nbytes, ALIGNMENT))

    def listed(self) -> Any:
        """The JSON value that the prefix holds."""
        try:
            return json.loads(self.prefix[PREFIX_HEADER:])
        except (ValueError, RecursionError):
            return None


def record_at(file: PartFile, start: int, nonce: int | None) -> Found | None:
    """The journal record at `start`, or None where there is no whole and sound one."""
    if start + PREFIX_HEADER > file.nbytes:
        return None
    head = file.peek(start, 1024)
    fields: Any = Fields(*schema.HEADER.unpack_from(head))
    prefix_nbytes = fields.blocks * ALIGNMENT
    if fields.magic != MAGIC or fields.address != start or nonce not in (None, fields.nonce):
        return None
    if prefix_nbytes < PREFIX_HEADER or start + prefix_nbytes + fields.nbytes > file.nbytes:
        return None
    prefix = head[:prefix_nbytes] if prefix_nbytes <= 1024 else file.read(start, prefix_nbytes)
    if schema.checksum(prefix, fields.kind) != fields.crc:
        return None
    return Found(fields, prefix, start, file.path)


def first_record(file: PartFile) -> Found:
    """The record that begins a part's journal."""
    found = record_at(file, JOURNAL_AT, None)
    if found is None or found.fields.kind != schema.PART:
        file.fail(JOURNAL_AT, "the journal of a part should begin here")
    return found


def part_facts(file: PartFile) -> dict[str, Any]:
    """What a part says of itself: model, step, rank, number."""
    facts = first_record(file).listed()
    wanted = {"schema": int, "model": str, "step": int, "rank": int, "part": int}
    if not isinstance(facts, dict) or any(type(facts.get(n)) is not k for n, k in wanted.items()):
        file.fail(JOURNAL_AT, "the part does not say to which model and step it belongs")
    return facts


def journal_records(file: PartFile, problems: list[str]) -> Iterator[Found]:
    """All sound records of a part in order; what lies between them is told in `problems`."""
    nonce = first_record(file).fields.nonce
    start = JOURNAL_AT
    while start < file.nbytes:
        if found := record_at(file, start, nonce):
            yield found
            start = found.end
        else:
            after = _next_record(file, start + ALIGNMENT, nonce)
            lost = f"a torn or damaged record at byte {start}, {after - start} bytes"
            problems.append(f"{file.path}: {lost}")
            start = after


def _next_record(file: PartFile, start: int, nonce: int) -> int:
    """The next sound record at or after `start`, or the file's end: its nonce is looked for."""
    pattern = schema.SEQUENCE.pack(nonce)
    while start < file.nbytes:
        window = file.peek(start, _STRIDE + 8)
        at = window.find(pattern)
        while at >= 0:
            candidate = start + at - 8
            if candidate % ALIGNMENT == 0 and record_at(file, candidate, nonce):
                return candidate
            at = window.find(pattern, at + 1)
        start += _STRIDE
    return file.nbytes


def ring_records(path: Path) -> Iterator[Found]:
    """The records that a killed process left in its ring, oldest first, not yet in any part."""
    with PartFile(path) as file:
        head = file.peek(0, RING_HEADER.size).ljust(RING_HEADER.size, b"\0")
        magic, capacity, place, sequence = RING_HEADER.unpack(head)
        if magic != RING_MAGIC or capacity + HEADER_NBYTES != file.nbytes:
            return
        for _ in range(2 * capacity // ALIGNMENT):
            place = 0 if place >= capacity else place
            start = HEADER_NBYTES + place
            if start + PREFIX_HEADER > file.nbytes:
                return
            fields: Any = Fields(*schema.HEADER.unpack(file.read(start, PREFIX_HEADER)))
            if fields.magic not in (MAGIC, schema.WAITING) or fields.sequence != sequence:
                return
            sequence += 1
            if fields.kind == schema.WRAP:
                place = 0
                continue
            prefix_nbytes = fields.blocks * ALIGNMENT
            total = prefix_nbytes + padded(fields.nbytes, ALIGNMENT)
            if prefix_nbytes < PREFIX_HEADER or start + total > file.nbytes:
                return
            if fields.magic == MAGIC:
                yield Found(fields, file.read(start, prefix_nbytes), start, path)
            place += total


class _Gathering:
    """Builds Contents from journal records, taking nothing twice and nothing on trust."""

    def __init__(self, file: PartFile, number: int, problems: list[str]) -> None:
        self.path, self.number, self.problems = file.path, number, problems
        self.rows: list[tuple[Any, ...]] = []
        self.calls: list[Any] = []
        self.forms: list[Any] = []
        self.elsewhere: dict[int, tuple[Path, int]] = {}
        self._unnamed: list[Found] = []  # whose call or form has not come up yet
        self._most = file.nbytes // ALIGNMENT + _MOST_IN_RING  # records that there can be

    def take(self, found: Found) -> None:
        """Take one record; a call, form or row that is already known is left as it is."""
        match found.fields.kind:
            case schema.CALL:
                self._insert(self.calls, found.fields.call, found.listed())
            case schema.FORM:
                self._insert(self.forms, found.fields.form, found.listed())
            case schema.VALUE:
                self._take_row(found, self._value_row(found))
            case schema.LINK:
                self._take_row(found, self._link_row(found))

    def _insert(self, known: list[Any], number: int, listed: Any) -> None:
        """Put `listed` at `number`, unless something is there or the number is absurd."""
        if number > self._most or not isinstance(listed, list):
            return
        known += [None] * (number + 1 - len(known))
        if known[number] is None:
            known[number] = listed

    def _take_row(self, found: Found, rest: tuple[Any, ...] | None) -> None:
        fields = found.fields
        number = fields.row
        if number < len(self.rows) and self.rows[number][0] != ABSENT:
            self._prefer_ring(found)
            return
        if rest is None or number > self._most:
            self._refuse(found)
            return
        if not (_has(self.calls, fields.call) and _has(self.forms, fields.form)):
            self._unnamed.append(found)
            return
        self.rows += [schema.lost_row(self.number)] * (number + 1 - len(self.rows))
        self.rows[number] = (fields.call, fields.form, fields.order, *rest)
        if found.file != self.path and fields.nbytes:
            self.elsewhere[number] = found.file, found.data_start

    def _prefer_ring(self, found: Found) -> None:
        """Read a value where the ring has it still: a kill may have torn its bytes in the part."""
        row = self.rows[found.fields.row]
        is_value = found.fields.kind == schema.VALUE and row[4] == NO_ROW
        if is_value and found.file != self.path and row[7] == found.fields.nbytes:
            self.elsewhere[found.fields.row] = found.file, found.data_start

    def end(self) -> None:
        """Take the rows whose call came after them: from the ring, while they were in the file."""
        late, self._unnamed = self._unnamed, []
        for found in late:
            self.take(found)
        for found in self._unnamed:
            self._refuse(found)

    def _refuse(self, found: Found) -> None:
        place = f"{found.file} at byte {found.start}"
        self.problems.append(f"{place}: a record that is torn, or refers to nothing known")

    def _value_row(self, found: Found) -> tuple[Any, ...] | None:
        size = int.from_bytes(found.prefix[PREFIX_HEADER + 8 : PREFIX_HEADER + 12], "little")
        end = PREFIX_HEADER + 16 + size  # of the object header, whose last 32 bytes are the digest
        digest = b""  # in a ring it is not there yet
        if found.file == self.path:
            if not PREFIX_HEADER + 48 <= end <= len(found.prefix):
                return None  # the fields reached the disk, the rest of the prefix did not
            digest = found.prefix[end - 32 : end]
        nbytes, header = found.fields.nbytes, found.start + PREFIX_HEADER
        return self.number, NO_ROW, header, found.data_start if nbytes else 0, nbytes, digest

    def _link_row(self, found: Found) -> tuple[Any, ...] | None:
        match found.listed():
            case [int(part), int(row)] if 0 <= row < NO_ROW and 0 <= part < 2 * SHARED:
                own = part == self.number and row < len(self.rows)
                if own and row in self.elsewhere:
                    self.elsewhere[found.fields.row] = self.elsewhere[row]
                target = self.rows[row] if own else schema.lost_row(part)
                return (part, row, *target[5:])
        return None


def _has(known: list[Any], number: int) -> bool:
    return number < len(known) and known[number] is not None


def gather(file: PartFile, records: Iterable[Found], problems: list[str]) -> Contents:
    """The contents of a part by those of `records` that are its own."""
    facts, nonce = part_facts(file), first_record(file).fields.nonce
    gathered = _Gathering(file, facts["part"], problems)
    for found in records:
        if found.fields.nonce == nonce:
            gathered.take(found)
    gathered.end()
    return Contents(
        file.path,
        np.array(gathered.rows, schema.ROW_TYPE),
        ListedCalls(LISTED_LOST if call is None else call for call in gathered.calls),
        read_forms(file.path, gathered.forms),
        facts["model"],
        facts["step"],
        problems=tuple(gathered.problems),
        elsewhere=gathered.elsewhere,
    )


def scan(file: PartFile, stranded: list[Found]) -> Contents:
    """The contents of a part by its journal, and by what a dead writer's ring has for it."""
    problems: list[str] = []
    return gather(file, chain(journal_records(file, problems), stranded), problems)


def read_part(path: Path, model: str, step: int, number: int, stranded: list[Found]) -> Contents:
    """What `path` holds: by its index, else by its journal, else, not being ours, by its groups."""
    with opened(path) as file:
        if file.nbytes <= JOURNAL_AT:
            problem = f"{file.path} ends at byte {file.nbytes}, before its first record"
            rows = np.empty(0, schema.ROW_TYPE)
            return Contents(path, rows, ListedCalls(()), [], model, step, problems=(problem,))
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
        contents.problems += (*_misplaced(file, step, number), *contents.unknown())
        contents.model, contents.step = model, step
        return contents


def _misplaced(file: PartFile, step: int, number: int) -> Iterator[str]:
    """That a part says that it is another than the one whose place it has."""
    found = record_at(file, JOURNAL_AT, None)
    facts = found.listed() if found is not None and found.fields.kind == schema.PART else None
    if isinstance(facts, dict) and (facts.get("step"), facts.get("part")) != (step, number):
        told = f"part {facts.get('part')} of token {facts.get('step')}"
        yield f"{file.path}: it says that it is {told}, and lies in another place"


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
