"""One part being written: its groups, its rows, its commits. Used by one thread at a time."""

from __future__ import annotations

import mmap
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
from xxhash import xxh3_128_hexdigest

from dumpcmp.archive import encoder, schema
from dumpcmp.archive.encoder import LINK_COUNT_AT, padded
from dumpcmp.archive.manifest import PartCount, kinds_of, names_of
from dumpcmp.archive.paths import part_name
from dumpcmp.archive.schema import (
    ABSENT,
    ALIGNMENT,
    NO_ROW,
    PREFIX_HEADER,
    ROW,
    SHARED,
    call_json,
    lost_row,
)
from dumpcmp.archive.write.arrangement import Arrangements, link_counts
from dumpcmp.archive.write.dense import DatasetMaker, is_loose, lay_densely
from dumpcmp.archive.write.objects import CallText, Group, Template
from dumpcmp.archive.write.part_tree import PartTree, ToldCall
from dumpcmp.nouns.record import Call, Source

_PACK_ROW = ROW.pack
LOST_PATH = "lost"  # where a link leads whose value is not there any more
DIGEST_NBYTES = 32  # the last of a row
SYNC_SECONDS = 5.0  # after which a part may be on the disk already
SHOWN_SECONDS = 0.5  # so often at most readers that know no journal are shown what goes on coming
_NUMBER = Struct("<I")
_LOST_CALL = call_json(schema.LOST_CALL)

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
        self.tree = PartTree(facts)
        self.told: list[ToldCall] = []
        self.forms: list[Template] = []
        self.rows = bytearray()
        self.outside: dict[int, tuple[str, str]] = {}  # row -> the part and path that have it
        self.recurring: Any = None  # the Recurring of its model, where steps share anything
        self._committed = self._looked_at = 0  # where the file ended then
        self._committed_at = self.began

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
        if nbytes:  # the prefix is last: it makes the record valid
            self.write(content, at + len(record))
            self.write(bytes(-nbytes % ALIGNMENT), at + len(record) + nbytes)
        self.write(record, at)
        return at

    @property
    def num_rows(self) -> int:
        return len(self.rows) // ROW.size

    def row(self, number: int) -> tuple[Any, ...]:
        return ROW.unpack_from(self.rows, number * ROW.size)

    def append_call(self, call: Call) -> None:
        told = CallText(call)
        numbers = (len(self.told), 0, 0, call.order)
        self.append(schema.CALL, told.prefix, numbers=numbers)
        self.told.append((call, told))

    def append_form(self, form: Template) -> int:
        """Append the next form; gives its number."""
        number = len(self.forms)
        self.append(schema.FORM, form.text, numbers=(0, number, 0, 0))
        self.forms.append(form)
        return number

    def append_value(self, owner: Owner, content: memoryview, known: str = "") -> None:
        """Append a value, whose bytes are `content`, as the next row; its digest may be known."""
        call, form, number, order = owner
        digest = (known or xxh3_128_hexdigest(content)).encode()
        prefix = bytearray(form.prefix)
        form.write_header(prefix, self.end + len(prefix), digest)
        at = self.append(schema.VALUE, prefix, content, (call, number, self.num_rows, order))
        self.add_value(*owner, at, at + len(prefix) if form.nbytes else 0, digest)

    def reserve_value(self, owner: Owner, digest: str) -> tuple[int, bytearray]:
        """Take a value as the next row that others write: where it goes, and the prefix of it.

        The prefix, which makes it valid, is to be written last.
        """
        call, form, number, order = owner
        at, prefix = self.end, bytearray(form.prefix)
        form.write_header(prefix, at + len(prefix), digest.encode())
        numbers = (call, number, self.num_rows, order)
        schema.write_fields(
            prefix, schema.VALUE, self.nonce, self.sequence, at, form.nbytes, numbers
        )
        self.sequence += 1
        self.end = at + form.total
        self.add_value(*owner, at, at + len(prefix), digest.encode())
        return at, prefix

    def append_large(self, owner: Owner, source: Source) -> None:
        """Append a value that is copied straight into the file, through a mapping of it."""
        self.keep_large(owner, self.fill_large(owner[1], source))

    def fill_large(self, form: Template, source: Source) -> bytes:
        """Copy a value to where it may lie next, through a mapping of the file; its digest."""
        start = self.end & -mmap.ALLOCATIONGRANULARITY
        lead, prefix, at = self.end - start, form.prefix_nbytes, self.end
        os.posix_fallocate(self.descriptor, at, form.total)
        with (
            _mapped(self.descriptor, lead + form.total, start) as whole,
            whole[lead + prefix : lead + prefix + form.nbytes] as room,
        ):
            wait = source.copy_into(room)
            if wait is not None:
                wait()
            return xxh3_128_hexdigest(room).encode()

    def keep_large(self, owner: Owner, digest: bytes) -> None:
        """Take what `fill_large` has copied as the next row."""
        at, prefix = self.reserve_value(owner, digest.decode())
        self.write(prefix, at)

    def drop_large(self) -> None:
        """Give back the room of what `fill_large` has copied."""
        os.ftruncate(self.descriptor, self.end)

    def append_link(
        self, owner: Owner, holder: int, row: int, target: tuple[Any, ...], path: str
    ) -> None:
        """Append a link to row `row` of part `holder`, as `add_link` takes it."""
        call, _, number, order = owner
        prefix = schema.text_prefix(b"[%d,%d]" % (holder, row))
        self.append(schema.LINK, prefix, numbers=(call, number, self.num_rows, order))
        self.add_link(owner, holder, row, target, path)

    def add_value(
        self, call: int, form: Template, number: int, order: int, at: int, offset: int,
        digest: bytes,
    ) -> None:  # fmt: skip
        """Take a value whose prefix begins at `at` of the file, and its bytes at `offset`."""
        self.rows += _PACK_ROW(
            call, number, order, self.number, NO_ROW, at + PREFIX_HEADER, offset, form.nbytes,
            digest,
        )  # fmt: skip

    def add_link(
        self, owner: Owner, holder: int, row: int, target: tuple[Any, ...], path: str
    ) -> None:
        """Take a value that is `target`, row `row` of part `holder`: this, an earlier or a shared.

        Where its bytes lie in another part, they are at `path` there.
        """
        call, _, number, order = owner
        first, _, _, part, *_ = target
        if not part == self.number == holder or first == ABSENT:
            self.outside[self.num_rows] = part_name(part if part >= SHARED else holder), path
        self.rows += ROW.pack(call, number, order, holder, row, *target[5:])

    def set_digest(self, row: int, digest: bytes) -> None:
        """Say what the digest of the value of `row` is, which was not known when it was added."""
        end = (row + 1) * ROW.size
        self.rows[end - DIGEST_NBYTES : end] = digest

    def add_lost(self) -> None:
        """Leave a row for a value that was lost, so that the others keep their numbers."""
        self.rows += ROW.pack(*lost_row(self.number))

    def commit_in_time(self) -> None:
        """Commit where nothing has come since the last look; while something comes, now and then.

        That is twice a second at most, and not where it takes more than a quarter of what was added
        since: groups are written anew at each commit, however large they are. Nothing depends on
        commits but readers that know no journal.
        """
        if self.end == self._looked_at:
            self.commit()
        elif time.monotonic() - self._committed_at >= SHOWN_SECONDS:
            self.tree.grow(self)
            if 4 * self.tree.cost <= self.end - self._committed:
                self.commit()
        self._looked_at = self.end

    @property
    def is_dirty(self) -> bool:
        """Whether something has come since the last commit."""
        return self.end != self._committed

    def commit(self) -> None:
        """Make everything added so far visible to any HDF5 reader."""
        self.tree.grow(self)
        if self.tree.dirty:
            self._show(*self.tree.lay(self.end + PREFIX_HEADER))
        self._committed, self._committed_at = self.end, time.monotonic()

    def _show(self, groups: bytes, root: int) -> None:
        """Append `groups`, and have any HDF5 reader begin at the one at `root`."""
        self.append(schema.COMMIT, bytes(PREFIX_HEADER), groups)
        self.write(encoder.superblock(root, self.end), 0)

    @property
    def calls(self) -> list[bytes]:
        """Those that it has, as JSON."""
        return [each[1].text if each else _LOST_CALL for each in self.told]

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

    def count(self) -> PartCount:
        """What it holds, for the manifest of its rank."""
        rows = np.frombuffer(self.rows, schema.ROW_TYPE)
        slots = [each.form.slot for each in self.forms]
        names = names_of(rows, self.calls, [each.form for each in self.forms])
        model, step = self.facts["model"], self.facts["step"]
        return PartCount(model, step, self.number, kinds_of(rows, slots), names)

    def seal(self, known: Arrangements | None = None, *, sync: bool = False) -> None:
        """Write the index and close the file; a part of small values is laid out anew for it.

        That is done as in a part before, where it is `known` how. With `sync` all of it is on the
        disk then.
        """
        known = known or Arrangements()
        if not (is_loose(self) and self._replace(known, sync=sync)):
            self._seal_in_place(known)
            if sync:
                os.fsync(self.descriptor)
        self.close()

    def _replace(self, known: Arrangements, *, sync: bool) -> bool:
        """Let a denser file take the part's place; False where the disk has no room for it.

        What may be on the disk for good already does not give way to what may not be.
        """
        draft = self.path.with_name(f".new-{self.path.name}")
        try:
            is_old = time.monotonic() - self.began > SYNC_SECONDS
            lay_densely(self, draft, known, sync=sync or is_old)
            if self.path.stat().st_ino != os.fstat(self.descriptor).st_ino:
                raise FileNotFoundError(f"{self.path} is another file by now")
            draft.rename(self.path)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            self.tree.moved()
            return False
        return True

    def _seal_in_place(self, known: Arrangements) -> None:
        """Write the index behind the journal, and count the hard links."""
        at = self.end + PREFIX_HEADER
        index = self.index(at, self.rows, encoder.dataset)
        self.append(schema.INDEX, bytes(PREFIX_HEADER), index)
        self._count_links()
        if self.tree.is_bare:
            start = self.end + PREFIX_HEADER
            tree = known.tree_of(self, start)
            block = tree.groups + tree.root_header(self.tree.root, at)
            self._show(block, start + len(tree.groups))
        else:
            self.tree.show_index(at)
            self.commit()
        os.ftruncate(self.descriptor, self.end)

    def _count_links(self) -> None:
        """Say in the header of each value how many links lead to it."""
        counts = link_counts(self)
        several = np.flatnonzero(counts > 1)
        headers = np.frombuffer(self.rows, schema.ROW_TYPE)["header"][several]
        for count, header in zip(counts[several].tolist(), headers.tolist(), strict=True):
            self.write(_NUMBER.pack(count), header + LINK_COUNT_AT)

    def close(self) -> None:
        """Close the file as it is: its journal holds all that was written."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
