"""Rewrites a sealed part with less in it: a draft, checked, takes the part's place whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from functools import cache, cached_property
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_hexdigest

from dumpcmp.archive.locks import alone
from dumpcmp.archive.paths import (
    dataset_path,
    models_in,
    part_name,
    parts_in,
    rank_directories,
    remove,
    steps_in,
)
from dumpcmp.archive.read.contents import Contents, check_known
from dumpcmp.archive.read.mapped_files import MappedFile
from dumpcmp.archive.read.part_index import index_address, read_index
from dumpcmp.archive.read.partfile import PartFile
from dumpcmp.archive.read.remote import from_store
from dumpcmp.archive.read.scan import part_facts
from dumpcmp.archive.read.shared_rows import SharedParts, with_shared
from dumpcmp.archive.schema import (
    ABSENT,
    NO_ROW,
    SHARED,
    form_key,
    form_of,
    lost_row,
)
from dumpcmp.archive.stores.urls import RemotePath
from dumpcmp.archive.write.objects import Template
from dumpcmp.archive.write.part import LOST_PATH, Owner, Part
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.files import replacing
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Kept, Location, Record, Stored
from dumpcmp.nouns.value import DTYPES, Value

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Condensing:
    """What to keep of a part: which Records to condense, and what then stands for the elements."""

    selects: Callable[[Record], bool]
    condense: Callable[[Record, Value], tuple[Stored, NDArray[np.float64]]]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What the rewriting of parts came to. They add."""

    num_parts: int = 0
    num_values: int = 0  # that were condensed
    nbytes_before: int = 0
    nbytes_after: int = 0

    def __add__(self, other: Rewritten) -> Rewritten:
        return Rewritten(*map(add, astuple(self), astuple(other)))

    @property
    def nbytes_freed(self) -> int:
        return self.nbytes_before - self.nbytes_after


@contextmanager
def alone_compacting(root: Path) -> Iterator[None]:
    """Hold the archive at `root` against other compactors; remove what a killed one left."""
    with alone(root):
        _remove_drafts(root)
        try:
            yield
        finally:  # of workers that were lost, and whose parts others have compacted
            _remove_drafts(root)


def _remove_drafts(root: Path) -> None:
    for step in steps_of(root):
        for draft in step.glob(".draft-*"):
            remove(draft)


def steps_of(root: Path) -> Iterator[Path]:
    """The directories of all steps of the archive at `root`."""
    for directory in rank_directories(root):
        for model in models_in(directory):
            yield from steps_in(model).values()


def parts_of(root: Path) -> list[Path]:
    """The parts of the archive at `root`, those that were written to first before the others."""
    found: dict[Path, int] = {}
    for step in steps_of(root):
        for part in parts_in(step).values():
            with suppress(FileNotFoundError):  # the run was overwritten meanwhile
                found[part] = part.stat().st_mtime_ns
    return sorted(found, key=lambda part: (found[part], part))


def is_sealed(part: Path) -> bool:
    """Whether nothing more will be written to `part`: it has its index."""
    with PartFile(part) as file:
        return index_address(file) is not None


def rewrite(path: Path, condensing: Condensing, home: Path | None = None) -> Rewritten:
    """Condense what is selected in the part at `path`. Nothing to condense: nothing is written.

    What it shares with other steps lies beside the directory of `home`, its place in the archive;
    the Summaries of that are its own.
    """
    source = _Sealed.at(path, SharedParts((home or path).parent.parent))
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
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # the directory's entries are on the disk before anyone relies on them
    finally:
        os.close(descriptor)
    return Rewritten(1, len(chosen), source.nbytes, after)


@dataclass(frozen=True, eq=False)
class _Sealed:
    """A part with its index: its contents, and its Records without their links."""

    path: Path
    facts: dict[str, Any]
    contents: Contents  # with what is shared as if it lay here
    nbytes: int
    listed: NDArray[np.void]  # the rows as the part has them
    shared: SharedParts

    @classmethod
    def at(cls, path: Path, shared: SharedParts) -> _Sealed:
        with PartFile(path) as file:
            facts, contents = part_facts(file), read_index(file)
            if contents is None:
                raise ArchiveError(
                    f"{path} is not sealed", hint="only parts that are finished can be compacted"
                )
            check_known(path, contents.forms)
            whole = with_shared(contents, facts["part"], shared)
            return cls(path, facts, whole, file.nbytes, contents.rows, shared)

    def target(self, row: int) -> tuple[tuple[Any, ...], str]:
        """The row that has the bytes of `row`, which are its own or shared, and their path."""
        listed: tuple[Any, ...] = self.listed[row].item()
        if listed[3] < SHARED:
            return listed, dataset_path(*self.contents.name(row))
        holder = self.shared.get(listed[3])
        if isinstance(holder, str) or row in self.contents.missing:
            return listed, LOST_PATH
        return listed, dataset_path(*holder.name(listed[4]))

    @cached_property
    def rows(self) -> dict[str, list[Any]]:
        """The rows of the index by column, which plain lists give fastest."""
        table = self.contents.rows
        return {name: table[name].tolist() for name in table.dtype.names or ()}

    @cached_property
    def records(self) -> list[Record | None]:
        """The Records of the rows; None for one that was lost."""
        columns = (self.rows[name] for name in ("call", "form", "order", "digest"))
        return [
            None if each[0] == ABSENT else self._record(*each)
            for each in zip(*columns, strict=True)
        ]

    def _record(self, number: int, form: int, order: int, digest: bytes) -> Record:
        (op, call), shared = self.contents.ops[number], self.contents.forms[form]
        return Record(
            Key(self.facts["model"], self.facts["step"], op, call, shared.slot), order,
            rank=self.facts["rank"], digest=digest.decode("ascii", "replace"), **shared.facts,
        )  # fmt: skip

    @property
    def keys(self) -> list[Key | None]:
        return [record.key if record else None for record in self.records]

    def holds(self, row: int) -> bool:
        """Whether the bytes of `row` are its own: it is no link, and was not lost."""
        return self.records[row] is not None and bool(self.rows["same"][row] == NO_ROW)

    @cached_property
    def rooms(self) -> dict[Path, MappedFile]:
        """The files that were mapped."""
        return {}

    def _bytes(self, location: Location) -> Bytes:
        part = location.part
        if isinstance(part, RemotePath):
            return from_store(part, location)
        if part not in self.rooms:
            self.rooms[part] = MappedFile(part)
        return self.rooms[part].view(location.offset, location.nbytes)

    def content(self, row: int) -> Bytes:
        """The bytes of `row`, as their digest says that they were written."""
        offset, nbytes, digest = (self.rows[name][row] for name in ("offset", "nbytes", "digest"))
        if problem := self.contents.missing.get(row):
            raise ArchiveError(
                f"{self.path}: {self.keys[row]}: {problem}, and the part stays as it is",
                hint="dumpcmp audit says what is left of it",
            )
        content = self._bytes(self.contents.location(row, offset, nbytes))
        if xxh3_128_hexdigest(content.data).encode() != digest:
            raise ArchiveError(
                f"{self.path}: {self.keys[row]} is damaged, and the part stays as it is",
                hint="dumpcmp audit says what is left of it",
            )
        return content


class _Rewriting:
    """Writes the draft: the same calls and rows in the same order, with less behind them."""

    def __init__(
        self, source: _Sealed, draft: Path, chosen: set[int], condensing: Condensing
    ) -> None:
        self.source, self.chosen, self.condensing = source, chosen, condensing
        self.part = Part(draft, source.facts)
        self._forms: dict[Any, tuple[Template, int]] = {}
        self._records: list[Record | None] = []  # as they are in the draft
        # The parts of the step to which this one links, by their names.
        self._other = cache(lambda name: _Sealed.at(source.path.with_name(name), source.shared))

    def write(self) -> None:
        """Write and seal the draft, and have its bytes on the disk."""
        calls = self.source.contents.calls()
        for number in range(len(self.source.contents.listed_calls)):
            if number in calls:
                self.part.append_call(calls[number])
            else:
                self.part.told.append(None)
        for row, record in enumerate(self.source.records):
            self._records.append(self._put(row, record))
        self.part.seal(sync=True)

    def _put(self, row: int, record: Record | None) -> Record | None:
        """Write one row; gives its Record as it is in the draft."""
        if record is None:
            self.part.add_lost()
            return None
        if not self.source.holds(row):
            return self._put_link(row, record)
        if row not in self.chosen and row in self.source.contents.elsewhere:
            listed, path = self.source.target(row)
            self.source.content(row)
            self.part.append_link(self._owner(row, record), listed[3], listed[4], listed, path)
            return record
        content = self.source.content(row)
        if row in self.chosen:
            dtype = DTYPES[record.dtype]
            value = Value(dtype, content.view(dtype.storage).reshape(record.shape))
            stored, numbers = self.condensing.condense(record, value)
            record = replace(record, kept=Kept.SUMMARY, stored=stored)
            content = np.ascontiguousarray(numbers, "<f8").view(np.uint8)
        self.part.append_value(self._owner(row, record), content.data)
        return record

    def _put_link(self, row: int, record: Record) -> Record:
        """A link stays a link; what it leads to says how much is kept of it."""
        where, first = self.source.rows["part"][row], self.source.rows["same"][row]
        other = None if where == self.part.number else self._other(part_name(where))
        records = other.records if other else self._records
        target = records[first] if first < len(records) else None
        place, path = lost_row(where), LOST_PATH
        if target is not None:
            record = replace(record, kept=target.kept, stored=target.stored, problem=target.problem)
            path = dataset_path(target.key.op, target.key.call, target.key.slot)
            if other:
                place, path = other.target(first)
            else:
                place = self.part.row(first)
                path = self.part.outside[first][1] if place[3] >= SHARED else path
        self.part.append_link(self._owner(row, record), where, first, place, path)
        return record

    def _owner(self, row: int, record: Record) -> Owner:
        key = form_key(record)
        if key not in self._forms:
            template = Template(form_of(record))
            self._forms[key] = template, self.part.append_form(template)
        return self.source.rows["call"][row], *self._forms[key], record.order


def _check(source: _Sealed, draft: Path, chosen: set[int]) -> None:
    """Audit the draft against the part that it is to replace: the same Keys, nothing lost."""
    found = _Sealed.at(draft, source.shared)
    if found.keys != source.keys:
        raise ArchiveError(f"{source.path}: the draft lists other values; the part stays as it is")
    if found.contents.listed_calls != source.contents.listed_calls:
        raise ArchiveError(f"{source.path}: the draft lists other calls; the part stays as it is")
    for row in filter(found.holds, range(len(found.records))):
        found.content(row)
        if row not in chosen and found.rows["digest"][row] != source.rows["digest"][row]:
            raise ArchiveError(
                f"{source.path}: {found.keys[row]} changed in the draft; the part stays as it is"
            )
