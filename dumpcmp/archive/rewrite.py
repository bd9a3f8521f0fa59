"""Rewrites a sealed part with less in it: a draft, checked, takes the part's place whole."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_hexdigest

from dumpcmp.archive.directory import part_name, parts_in, rank_directories
from dumpcmp.archive.escaping import group_path, link_name
from dumpcmp.archive.read.contents import ABSENT, Contents, read_index
from dumpcmp.archive.read.decoder import PartFile, hard_links, root_address
from dumpcmp.archive.read.scan import part_facts
from dumpcmp.archive.schema import INDEX_GROUP, NO_ROW
from dumpcmp.archive.write.form import Form, FormKey, form_key
from dumpcmp.archive.write.part import LOST_PATH, Elsewhere, Part
from dumpcmp.nouns.dtypes import DTYPES
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.files import replacing
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Kept, Record, Stored
from dumpcmp.nouns.value import Value

LOCK_FILE = ".compacting"
Numbers = NDArray[np.float64]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Condensing:
    """What to keep of a part: which Records to condense, and what then stands for the elements."""

    selects: Callable[[Record], bool]
    condense: Callable[[Record, Value], tuple[Stored, Numbers]]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What the rewriting of parts came to. They add."""

    num_parts: int = 0
    num_values: int = 0  # that were condensed
    nbytes_before: int = 0
    nbytes_after: int = 0

    def __add__(self, other: Rewritten) -> Rewritten:
        return Rewritten(
            self.num_parts + other.num_parts,
            self.num_values + other.num_values,
            self.nbytes_before + other.nbytes_before,
            self.nbytes_after + other.nbytes_after,
        )

    @property
    def nbytes_freed(self) -> int:
        """Bytes that the disk has back."""
        return self.nbytes_before - self.nbytes_after


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold the archive at `root` against other compactors; remove what a killed one left."""
    try:
        descriptor = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ArchiveError(f"cannot compact {root}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise ArchiveError(
                f"{root} is being compacted by another process ({holder})",
                hint="wait for it, or stop it; what it has done stays",
            ) from None
        os.pwrite(descriptor, str(os.getpid()).encode().ljust(32), 0)
        for draft in root.glob("worldsize*_global_rank*/*/*/.draft-*"):
            shutil.rmtree(draft)
        yield
        (root / LOCK_FILE).unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def parts_of(root: Path) -> list[Path]:
    """The parts of the archive at `root`, those that were written to first before the others."""
    found = {
        part: _stamp(part)
        for directory in rank_directories(root)
        for step in directory.glob("*/*/")
        for part in parts_in(step).values()
    }
    return sorted(found, key=lambda part: (found[part], part))


def _stamp(part: Path) -> int:
    try:
        return part.stat().st_mtime_ns
    except FileNotFoundError:  # the run was overwritten meanwhile
        return 0


def is_sealed(part: Path) -> bool:
    """Whether nothing more will be written to `part`: it has its index."""
    with PartFile(part) as file:
        first = dict(islice(hard_links(file, root_address(file)), 1))
        return INDEX_GROUP in first


def sealed_parts(root: Path) -> Iterator[Path]:
    """The parts of the archive at `root` to which nothing more will be written, oldest first."""
    return filter(is_sealed, parts_of(root))


def rewrite(path: Path, condensing: Condensing) -> Rewritten:
    """Condense what is selected in the part at `path`. Nothing to condense: nothing is written."""
    source = _Source.of(path)
    chosen = {
        row
        for row, record in enumerate(source.records)
        if record and source.holds(row) and record.kept is Kept.FULL and condensing.selects(record)
    }
    if not chosen:
        return Rewritten()
    with replacing(path) as draft:
        _Rewriting(source, draft, chosen, condensing).write()
        _check(source, draft, chosen)
        after = draft.stat().st_size
    _settle(path.parent)
    return Rewritten(1, len(chosen), source.nbytes, after)


def _settle(directory: Path) -> None:
    """Have the directory's entries on the disk before anyone relies on them."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, eq=False)
class _Source:
    """The part that is rewritten: its contents and its Records, without their links."""

    path: Path
    facts: dict[str, Any]
    contents: Contents
    records: list[Record | None]  # None: it was lost
    nbytes: int

    @classmethod
    def of(cls, path: Path) -> _Source:
        with PartFile(path) as file:
            facts, contents = part_facts(file), read_index(file)
            if contents is None:
                raise ArchiveError(
                    f"{path} is not sealed", hint="only parts that are finished can be compacted"
                )
            contents.model, contents.step = facts["model"], facts["step"]
            return cls(path, facts, contents, list(_records(facts, contents)), file.nbytes)

    @cached_property
    def rows(self) -> dict[str, list[Any]]:
        """The rows of the index by column, which plain lists give fastest."""
        table = self.contents.rows
        return {name: table[name].tolist() for name in table.dtype.names or ()}

    def holds(self, row: int) -> bool:
        """Whether the bytes of `row` are its own: it is no link."""
        return bool(self.records[row] and self.rows["same"][row] == NO_ROW)

    def key(self, row: int) -> Key | None:
        """The Key of `row`, unless it was lost."""
        return record.key if (record := self.records[row]) else None

    def mapped(self) -> Bytes:
        """The bytes of the part, read when they are used."""
        return np.memmap(self.path, np.uint8, "r").view(np.ndarray)

    def content(self, row: int, room: Bytes) -> Bytes:
        """The bytes of `row`, as their digest says that they were written."""
        offset, nbytes, digest = (self.rows[name][row] for name in ("offset", "nbytes", "digest"))
        content = room[offset : offset + nbytes]
        if xxh3_128_hexdigest(content.data).encode() != digest:
            raise ArchiveError(
                f"{self.path}: {self.key(row)} is damaged, and the part stays as it is",
                hint="dumpcmp audit says what is left of it",
            )
        return content


def _records(facts: dict[str, Any], contents: Contents) -> Iterator[Record | None]:
    for row in contents.rows:
        if row["call"] == ABSENT:
            yield None
            continue
        form, (op, call) = contents.forms[row["form"]], contents.ops[row["call"]]
        yield Record(
            Key(facts["model"], facts["step"], op, call, form.slot),
            int(row["order"]), form.dtype, form.shape, form.stride, form.storage_offset,
            form.device, facts["rank"], form.layout, None, form.kept, form.problem,
            row["digest"].decode("ascii", "replace"), None, form.stored, form.seen_in,
        )  # fmt: skip


class _Rewriting:
    """Writes the draft: the same calls and rows in the same order, with less behind them."""

    def __init__(
        self, source: _Source, draft: Path, chosen: set[int], condensing: Condensing
    ) -> None:
        self.source, self.room = source, source.mapped()
        self.chosen, self.condensing = chosen, condensing
        self.part = Part(draft, source.facts)
        self._forms: dict[FormKey, tuple[int, Form]] = {}
        self._records: list[Record | None] = []  # as they are in the draft
        self._others: dict[int, _Source] = {}

    def write(self) -> None:
        """Write and seal the draft, and have its bytes on the disk."""
        calls = self.source.contents.calls()
        for number in range(len(self.source.contents.listed_calls)):
            if number in calls:
                self.part.append_call(calls[number])
            else:
                self.part.add_lost_call()
        for row in range(len(self.source.records)):
            self._put(row)
        own = os.dup(self.part.descriptor)  # sealing closes the part's
        try:
            self.part.seal()
            os.fsync(own)
        finally:
            os.close(own)

    def _put(self, row: int) -> None:
        record = self.source.records[row]
        if record is None:
            self.part.add_lost()
            self._records.append(None)
        elif not self.source.holds(row):
            self._put_link(row, record)
        elif row in self.chosen:
            content = self.source.content(row, self.room)
            stored, numbers = self.condensing.condense(record, _value(record, content))
            record = replace(record, kept=Kept.SUMMARY, stored=stored)
            self._put_value(row, record, np.ascontiguousarray(numbers, "<f8").view(np.uint8))
        else:
            self._put_value(row, record, self.source.content(row, self.room))

    def _put_value(self, row: int, record: Record, content: Bytes) -> None:
        number, form = self._form(record)
        self._records.append(record)
        self.part.append_value(self._call(row), form, number, record.order, content.data)

    def _put_link(self, row: int, record: Record) -> None:
        """A link stays a link; what it leads to says how much is kept of it."""
        where, first = self.source.rows["part"][row], self.source.rows["same"][row]
        other = None if where == self.source.facts["part"] else self._other(where)
        targets = other.records if other else self._records
        target, path = targets[first] if first < len(targets) else None, LOST_PATH
        if target is not None:
            record = replace(record, kept=target.kept, stored=target.stored, problem=target.problem)
            path = "/".join(
                (*group_path(target.key.op, target.key.call), link_name(target.key.slot))
            )
        number, form = self._form(record)
        self._records.append(record)
        holder: Part | Elsewhere = self.part
        if other is not None or target is None:
            place = self.source.path.with_name(part_name(where))
            holder = Elsewhere(where, place, other.contents.rows if other else None)
        self.part.append_link(self._call(row), form, number, record.order, holder, first, path)

    def _call(self, row: int) -> int:
        return int(self.source.rows["call"][row])

    def _other(self, number: int) -> _Source:
        if number not in self._others:
            self._others[number] = _Source.of(self.source.path.parent / part_name(number))
        return self._others[number]

    def _form(self, record: Record) -> tuple[int, Form]:
        fields = form_key(record)
        if fields not in self._forms:
            form = Form(record)
            self._forms[fields] = self.part.append_form(form), form
        return self._forms[fields]


def _value(record: Record, content: Bytes) -> Value:
    dtype = DTYPES[record.dtype]
    return Value(dtype, content.view(dtype.storage).reshape(record.shape))


def _check(source: _Source, draft: Path, chosen: set[int]) -> None:
    """Audit the draft against the part that it is to replace: the same Keys, nothing lost."""
    found = _Source.of(draft)
    rows = range(max(len(found.records), len(source.records)))
    if len(found.records) != len(source.records) or any(
        found.key(r) != source.key(r) for r in rows
    ):
        raise ArchiveError(f"{source.path}: the draft lists other values; the part stays as it is")
    if found.contents.listed_calls != source.contents.listed_calls:
        raise ArchiveError(f"{source.path}: the draft lists other calls; the part stays as it is")
    room = found.mapped()
    for row in filter(found.holds, range(len(found.records))):
        found.content(row, room)
        if row not in chosen and found.rows["digest"][row] != source.rows["digest"][row]:
            raise ArchiveError(
                f"{source.path}: {found.key(row)} changed in the draft; the part stays as it is"
            )
