"""A part opened with suspicion: its bytes by address, and its HDF5 objects.

Every address and length is checked before use.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, NoReturn

from dumpcmp.archive import encoder
from dumpcmp.archive.encoder import ADDRESS, MESSAGE, OBJECT_HEADER, SIGNATURE, UNDEFINED
from dumpcmp.archive.read.mapped_files import unreadable
from dumpcmp.nouns.budgets import INDEX
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.files import read_at

LARGEST_READ = INDEX.nbytes  # of an index or a group that a reader is willing to hold
PEEK = 1024  # enough for the header of an index group or of one of its datasets


class PartFile:
    """A part opened for reading: bytes by address, never past the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Neither followed out of the archive, nor waited for where it is a pipe.
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self.descriptor = os.open(path, flags)
        except OSError as error:
            raise ArchiveError(f"cannot open {path}: {error.strerror}") from error
        told = os.fstat(self.descriptor)
        self.nbytes = told.st_size
        if not stat.S_ISREG(told.st_mode):
            os.close(self.descriptor)
            raise ArchiveError(f"{path} is no file")

    def __enter__(self) -> PartFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def fail(self, place: int, what: str) -> NoReturn:
        raise damaged_at(self.path, place, what)

    def read(self, place: int, nbytes: int) -> bytes:
        """Exactly `nbytes` at `place`."""
        if nbytes > LARGEST_READ or place + nbytes > self._grown(place + nbytes):
            self.fail(place, f"{nbytes} bytes are said to be here, but the file ends before")
        try:
            content = read_at(self.descriptor, nbytes, place)
        except OSError as error:
            raise unreadable(self.path, place, nbytes, str(error.strerror)) from error
        if len(content) != nbytes:
            self.fail(place, "the file became shorter while it was read")
        return content

    def peek(self, place: int, nbytes: int) -> bytes:
        """At most `nbytes` at `place`."""
        return self.read(place, max(0, min(nbytes, self._grown(place + 1) - place)))

    def need(self, start: int, end: int) -> None:
        """Know that all bytes from `start` to `end` are about to be read: here, that is all."""

    def _grown(self, end: int) -> int:
        """How long the file is; one that ended before `end` may have been written to since."""
        if end > self.nbytes:
            self.nbytes = os.fstat(self.descriptor).st_size
        return self.nbytes


class Dataset(NamedTuple):
    """What a dataset's header says: its type, its shape, and where its bytes are."""

    datatype: bytes
    shape: tuple[int, ...]
    address: int
    nbytes: int
    is_packed: bool = False  # by zlib, which has found it whole


def root_address(file: PartFile) -> int:
    """Where the superblock says that the root group's header is; it must be of our kind."""
    head = file.read(0, encoder.DENSE_SUPERBLOCK.size)
    if head[:8] != SIGNATURE:
        file.fail(0, "this is no HDF5 file")
    is_dense = head[8] == 1
    kind = encoder.DENSE_SUPERBLOCK if is_dense else encoder.SUPERBLOCK
    fields = kind.unpack_from(head)
    if fields[1:8] != (is_dense, 0, 0, 0, 0, 8, 8) or fields[-3] != 0:
        file.fail(8, "the superblock is not of the kind that dumpcmp writes")
    return int(fields[-4])


def messages(file: PartFile, address: int) -> Iterator[tuple[int, int, bytes]]:
    """Place, kind and body of the messages in the first bytes of an object header."""
    if address == UNDEFINED or address % 8:
        file.fail(address, "no object header can be here")
    head = file.peek(address, PEEK)
    version, count, _, nbytes = OBJECT_HEADER.unpack_from(head.ljust(OBJECT_HEADER.size, b"\0"))
    if version != 1 or address + OBJECT_HEADER.size + nbytes > file.nbytes:
        file.fail(address, "an object header should be here")
    at = OBJECT_HEADER.size
    end = min(len(head), at + nbytes)
    while count and at + MESSAGE.size <= end:
        kind, size, _ = MESSAGE.unpack_from(head, at)
        if at + MESSAGE.size + size > end:
            return
        yield address + at, kind, head[at + MESSAGE.size : at + MESSAGE.size + size]
        at += MESSAGE.size + size
        count -= 1


def hard_links(file: PartFile, address: int) -> Iterator[tuple[str, int]]:
    """Name and address of the hard links in the first bytes of a group's header."""
    for place, kind, body in messages(file, address):
        if kind != encoder.LINK:
            continue
        if len(body) < 24 or body[0] != 1 or body[1] & 0b11100 != 0b11100 or body[1] & 0b10:
            file.fail(place, "a link should be here")
        start = 12 + (2 if body[1] & 1 else 1)
        length = int.from_bytes(body[12:start], "little")
        if start + length + 8 > len(body):
            file.fail(place, "a link's name is longer than the link")
        if body[2] == 0:
            name = body[start : start + length].decode("utf-8", "replace")
            yield name, ADDRESS.unpack_from(body, start + length)[0]


def dataset(file: PartFile, address: int) -> Dataset:
    """The dataset whose header is at `address`, its bytes known to lie within the file."""
    found = {kind: body for _, kind, body in messages(file, address)}
    try:
        datatype, space = found[encoder.DATATYPE], found[encoder.DATASPACE]
        version, layout, start, nbytes = encoder.LAYOUT_FIELDS.unpack_from(found[encoder.LAYOUT])
        shape = Struct(f"<{space[1]}Q").unpack_from(space, 8)
    except (KeyError, IndexError, StructError):
        file.fail(address, "a dataset's header should be here")
    if (version, layout, space[0]) != (3, 1, 1):
        file.fail(address, "the dataset is not of the kind that dumpcmp writes")
    if nbytes and start + nbytes > file.nbytes:
        file.fail(
            start, f"a dataset of {nbytes} bytes is said to be here, but the file ends before"
        )
    return Dataset(datatype, shape, start, nbytes)


def index_content(file: PartFile, address: int) -> tuple[Dataset, bytes]:
    """A dataset of the index and its bytes, which may be compressed."""
    found = {kind: body for _, kind, body in messages(file, address)}
    if found.get(encoder.LAYOUT, b"")[:2] != b"\3\2":
        plain = dataset(file, address)
        return plain, file.read(plain.address, plain.nbytes) if plain.nbytes else b""
    try:
        *_, node, count, size = encoder.CHUNKED_FIELDS.unpack_from(found[encoder.LAYOUT])
        fields = encoder.CHUNK_NODE.unpack(file.read(node, encoder.CHUNK_NODE.size))
        space, datatype = found[encoder.DATASPACE], found[encoder.DATATYPE]
        shape = Struct(f"<{space[1]}Q").unpack_from(space, 8)
    except (KeyError, IndexError, StructError):
        file.fail(address, "a compressed dataset should be here")
    if fields[:4] != (b"TREE", 1, 0, 1) or shape != (count,) or count * size > LARGEST_READ:
        file.fail(address, "the dataset is not of the kind that dumpcmp writes")
    content = _inflated(file, fields[10], fields[6], count * size)
    return Dataset(datatype, shape, fields[10], len(content), True), content


def _inflated(file: PartFile, place: int, nbytes: int, wanted: int) -> bytes:
    """What zlib makes of `nbytes` at `place`: just the bytes that are `wanted`."""
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(file.read(place, nbytes), wanted + 1)
    except zlib.error:
        content = b""
    if len(content) != wanted or not unpacking.eof:
        file.fail(place, "what is compressed here is damaged")
    return content


def damaged_at(path: Path, place: int, what: str) -> ArchiveError:
    """The error of a part that has something else at `place` than `what` says."""
    return ArchiveError(
        f"{path} is damaged at byte {place}: {what}", hint="dumpcmp audit says what is left of it"
    )
