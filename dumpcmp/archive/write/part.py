"""One part being written: its groups, its rows, its commits. Used by one thread at a time."""

from __future__ import annotations

import mmap
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from struct import Struct
from typing import Any

from xxhash import xxh3_128_hexdigest

from dumpcmp.archive import encoder, schema
from dumpcmp.archive.encoder import LINK_COUNT_AT, padded
from dumpcmp.archive.paths import part_name
from dumpcmp.archive.schema import (
    ABSENT,
    ALIGNMENT,
    NO_ROW,
    PREFIX_HEADER,
    ROW,
    call_json,
    lost_row,
)
from dumpcmp.archive.write.dense import DatasetMaker, is_loose, lay_densely
from dumpcmp.archive.write.objects import CallText, Group, Template
from dumpcmp.nouns.record import Call, Source

_PACK_ROW = ROW.pack
LOST_PATH = "lost"  # where a link leads whose value is not there any more
DIGEST_NBYTES = 32  # the last of a row
SYNC_SECONDS = 5.0  # after which a part may be on the disk already
_NUMBER = Struct("<I")
_DEPTH = attrgetter("depth")

Octets = bytes | bytearray | memoryview
Owner = tuple[int, Template, int, int]  # of a row: its call, its form and that one's number, order


@contextmanager
def _mapped(descriptor: int, nbytes: int, offset: int) -> Iterator[memoryview]:
    """`nbytes` of a file at `offset`; whoever keeps a view of them keeps the mapping, no more."""
    mapping = mmap.mmap(descriptor, nbytes, offset=offset)
    with memoryview(mapping) as whole:
        yield whole
    with suppress(BufferError):  # it goes when the last view does
        mapping.close()


class Part:
    """An HDF5 file that is only appended to, and whose superblock is replaced at each commit."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        draft = path.with_name(f".new-{path.name}")  # a kill must not leave half a beginning
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._set_out(path, facts, secrets.randbits(64), os.open(draft, flags, 0o644))
        self.append(schema.PART, schema.text_prefix(schema.json_text(facts)))
        self.commit()
        draft.rename(path)

    @classmethod
    def resume(cls, path: Path, facts: dict[str, Any], nonce: int) -> Part:
        """A part that exists already, as if nothing were known of what it holds."""
        part = cls.__new__(cls)
        part._set_out(path, facts, nonce, os.open(path, os.O_RDWR | os.O_CLOEXEC))
        return part

    def _set_out(self, path: Path, facts: dict[str, Any], nonce: int, descriptor: int) -> None:
        self.path = path
        self.facts = facts
        self.began = time.monotonic()
        self.number: int = facts["part"]
        self.nonce = nonce
        self.descriptor = descriptor
        self.sequence = 0
        self.end = schema.JOURNAL_AT
        self.root = Group(None)
        self.root.describe(list(facts.items()))
        self.groups: dict[tuple[str, ...], Group] = {}
        self.call_groups: list[Group] = []
        self.calls: list[bytes] = []  # as JSON
        self.forms: list[Template] = []
        self.rows = bytearray()
        self.num_links_to: dict[int, int] = {}  # row -> hard links beyond the first
        self.outside: dict[int, tuple[str, str]] = {}  # row -> the part and path that have it
        self.dirty: set[Group] = {self.root}
        self._committed = self._looked_at = 0  # where the file ended then

    def write(self, content: Octets, address: int) -> None:
        rest = memoryview(content)
        while rest:
            written = os.pwrite(self.descriptor, rest, address)
            rest, address = rest[written:], address + written

    def append(
        self, kind: int, prefix: Octets, content: Octets = b"",
        numbers: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> int:  # fmt: skip
        """Append a journal record that does not come through the ring; gives where it begins.

        `numbers` are its call, form, row and order.
        """
        at, nbytes = self.end, len(content)
        record = bytearray(prefix)
        schema.write_fields(record, kind, self.nonce, self.sequence, at, nbytes, numbers)
        self.sequence += 1
        self.end = at + len(record) + padded(nbytes, ALIGNMENT)
        self.write(record, at)
        self.write(content, at + len(record))
        self.write(bytes(-nbytes % ALIGNMENT), at + len(record) + nbytes)
        return at

    @property
    def num_rows(self) -> int:
        return len(self.rows) // ROW.size

    def row(self, number: int) -> tuple[Any, ...]:
        return ROW.unpack_from(self.rows, number * ROW.size)

    def append_call(self, call: Call) -> None:
        told = CallText(call)
        numbers = (len(self.calls), 0, 0, call.order)
        self.append(schema.CALL, told.prefix, numbers=numbers)
        self.add_call(call, told)

    def append_form(self, form: Template) -> int:
        """Append the next form; gives its number."""
        number = len(self.forms)
        self.append(schema.FORM, form.text, numbers=(0, number, 0, 0))
        self.forms.append(form)
        return number

    def append_value(self, owner: Owner, content: memoryview) -> None:
        """Append a value, whose bytes are `content`, as the next row."""
        call, form, number, order = owner
        digest = xxh3_128_hexdigest(content).encode()
        prefix = bytearray(form.prefix)
        form.write_header(prefix, self.end + len(prefix), digest)
        at = self.append(schema.VALUE, prefix, content, (call, number, self.num_rows, order))
        self.add_value(*owner, at, at + len(prefix) if form.nbytes else 0, digest)

    def append_large(self, owner: Owner, source: Source) -> None:
        """Append a value that is copied straight into the file, through a mapping of it."""
        call, form, number, order = owner
        start = self.end & -mmap.ALLOCATIONGRANULARITY
        lead, prefix, at = self.end - start, form.prefix_nbytes, self.end
        os.posix_fallocate(self.descriptor, at, form.total)
        with (
            _mapped(self.descriptor, lead + form.total, start) as whole,
            whole[lead : lead + prefix] as head,
            whole[lead + prefix : lead + prefix + form.nbytes] as room,
        ):
            wait = source.copy_into(room)
            if wait is not None:
                wait()
            digest = xxh3_128_hexdigest(room).encode()
            form.write_header(head, at + prefix, digest)
            numbers = (call, number, self.num_rows, order)
            schema.write_fields(
                head, schema.VALUE, self.nonce, self.sequence, at, form.nbytes, numbers
            )
        self.add_value(*owner, at, at + prefix, digest)
        self.end += form.total

    def append_link(self, owner: Owner, row: int, target: tuple[Any, ...], path: str) -> None:
        """Append a link to `target`, row `row` of its part, which has it at `path`."""
        call, _, number, order = owner
        prefix = schema.text_prefix(b"[%d,%d]" % (target[3], row))
        self.append(schema.LINK, prefix, numbers=(call, number, self.num_rows, order))
        self.add_link(owner, row, target, path)

    def add_call(self, call: Call, told: CallText) -> None:
        """Take the next call: its group, with its attributes."""
        group = self._group(told.path(call))
        told.describe(group, call)
        self.call_groups.append(group)
        self.calls.append(told.text)

    def add_lost_call(self) -> None:
        """Leave a number for a call that was lost, so that the others keep theirs."""
        self.call_groups.append(Group(None))
        self.calls.append(call_json(schema.LOST_CALL))

    def _group(self, path: tuple[str, ...]) -> Group:
        """The group at `path`, made along with its parents where it is missing."""
        group = self.groups.get(path)
        if group is None:
            parent = self._group(path[:-1]) if len(path) > 1 else self.root
            group = self.groups[path] = Group(parent)
            parent.add_group(path[-1], group)
            self._touch(group)
        return group

    def _touch(self, group: Group | None) -> None:
        while group is not None and group not in self.dirty:
            self.dirty.add(group)
            group = group.parent

    def add_value(
        self, call: int, form: Template, number: int, order: int, at: int, offset: int,
        digest: bytes,
    ) -> None:  # fmt: skip
        """Take a value whose prefix begins at `at` of the file, and its bytes at `offset`."""
        group = self.call_groups[call]
        header = at + PREFIX_HEADER
        num_links = group.num_links
        group.links += form.links.pack(form.before_order, num_links, form.before_target, header)
        group.num_links = num_links + 1
        if group not in self.dirty:
            self._touch(group)
        self.rows += _PACK_ROW(
            call, number, order, self.number, NO_ROW, header, offset, form.nbytes, digest
        )

    def add_link(self, owner: Owner, row: int, target: tuple[Any, ...], path: str) -> None:
        """Take a value that `target`, row `row` of this part or an earlier one, has at `path`."""
        call, form, number, order = owner
        first, _, _, part, _, header, *_ = target
        group = self.call_groups[call]
        if part == self.number and first != ABSENT:
            place = group.num_links
            group.add(form.links.pack(form.before_order, place, form.before_target, header))
            self.num_links_to[row] = self.num_links_to.get(row, 0) + 1
        else:
            self.outside[self.num_rows] = part_name(part), path
            group.add(encoder.external_link(form.slot, group.num_links, part_name(part), path))
        if group not in self.dirty:
            self._touch(group)
        self.rows += ROW.pack(call, number, order, part, row, *target[5:])

    def set_digest(self, row: int, digest: bytes) -> None:
        """Say what the digest of the value of `row` is, which was not known when it was added."""
        end = (row + 1) * ROW.size
        self.rows[end - DIGEST_NBYTES : end] = digest

    def add_lost(self) -> None:
        """Leave a row for a value that was lost, so that the others keep their numbers."""
        self.rows += ROW.pack(*lost_row(self.number))

    def commit_in_time(self) -> None:
        """Commit, unless that would take more than a quarter of what was added since the last time.

        A group is written anew at each commit, however large it has grown. Nothing depends on
        commits but readers that know no journal, and once nothing more comes there is a last one.
        """
        if not self.dirty:
            self._looked_at = self.end
            return
        cost = sum(len(group.links) + len(group.attributes) for group in self.dirty)
        if 4 * cost <= self.end - self._committed or self.end == self._looked_at:
            self.commit()
        self._looked_at = self.end

    def commit(self) -> None:
        """Make everything added so far visible to any HDF5 reader."""
        if not self.dirty:
            return
        block = bytearray()
        start = self.end + PREFIX_HEADER
        address = start
        for group in sorted(self.dirty, key=_DEPTH, reverse=True):
            for name, text in group.long_texts:
                group.add(encoder.hard_link(name, group.num_links, start + len(block)))
                block += encoder.text_dataset(text, start + len(block))
            group.long_texts = ()
            address = start + len(block)
            block += group.header()
            group.moved(address)
        self.append(schema.COMMIT, bytes(PREFIX_HEADER), bytes(block))
        self.write(encoder.superblock(address, self.end), 0)
        self.dirty.clear()
        self._committed = self.end

    def index(self, start: int, rows: bytes | bytearray, dataset: DatasetMaker) -> bytes:
        """The index group and its datasets, to lie at `start`; the group's header is first."""
        calls = b"[%s]" % b",\n".join(self.calls)
        forms = b"[%s]" % b",\n".join(form.json for form in self.forms)
        group = Group(None)
        room = len(encoder.group_header(b"", 0, b"", 0)) + 256
        block = bytearray(room)
        for name, kind, shape, content in (
            ("records", encoder.numpy_datatype(schema.ROW_TYPE), (self.num_rows,), rows),
            ("calls", encoder.text_type(len(calls)), (), calls),
            ("forms", encoder.text_type(len(forms)), (), forms),
        ):
            group.add(encoder.hard_link(name, group.num_links, start + len(block)))
            block += dataset(kind, shape, content, start + len(block))
        header = group.header()
        block[: len(header)] = header
        return bytes(block)

    def seal(self, *, sync: bool = False) -> None:
        """Write the index and close the file; a part of small values is laid out anew for it.

        With `sync` all of it is on the disk then.
        """
        if not (is_loose(self) and self._replace(sync=sync)):
            self._seal_in_place()
            if sync:
                os.fsync(self.descriptor)
        self.close()

    def _replace(self, *, sync: bool) -> bool:
        """Let a denser file take the part's place; False where the disk has no room for it.

        What may be on the disk for good already does not give way to what may not be.
        """
        draft = self.path.with_name(f".new-{self.path.name}")
        try:
            lay_densely(self, draft, sync=sync or time.monotonic() - self.began > SYNC_SECONDS)
            if self.path.stat().st_ino != os.fstat(self.descriptor).st_ino:
                raise FileNotFoundError(f"{self.path} is another file by now")
            draft.rename(self.path)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            self.dirty.update(self.groups.values())  # they were told of other addresses
            self.dirty.add(self.root)
            return False
        return True

    def _seal_in_place(self) -> None:
        """Write the index behind the journal, and count the hard links."""
        at = self.end + PREFIX_HEADER
        index = self.index(at, self.rows, encoder.dataset)
        self.append(schema.INDEX, bytes(PREFIX_HEADER), index)
        self.root.foremost = encoder.hard_link(schema.INDEX_GROUP, self.root.num_links, at)
        self.dirty.add(self.root)
        for row, extra in self.num_links_to.items():
            self.write(_NUMBER.pack(1 + extra), self.row(row)[5] + LINK_COUNT_AT)
        self.commit()
        os.ftruncate(self.descriptor, self.end)

    def close(self) -> None:
        """Close the file as it is: its journal holds all that was written."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
