"""HDF5's bytes read back with suspicion: every address and length is checked before use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import NoReturn

from dumpcmp.archive import encoder
from dumpcmp.archive.encoder import ADDRESS, MESSAGE, OBJECT_HEADER, SIGNATURE, UNDEFINED
from dumpcmp.nouns.errors import ArchiveError

LARGEST_READ = 256 << 20  # bytes of an index or a group that a reader is willing to hold
PEEK = 1024  # enough for the header of an index group or of one of its datasets


class PartFile:
    """A part opened for reading: bytes by address, never past the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.nbytes = os.fstat(self.descriptor).st_size
        except OSError as error:
            raise ArchiveError(f"cannot open {path}: {error.strerror}") from error

    def __enter__(self) -> PartFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def fail(self, place: int, what: str) -> NoReturn:
        raise ArchiveError(
            f"{self.path} is damaged at byte {place}: {what}",
            hint="dumpcmp audit says what is left of it",
        )

    def read(self, place: int, nbytes: int) -> bytes:
        """Exactly `nbytes` at `place`."""
        if nbytes > LARGEST_READ or place + nbytes > self.nbytes:
            self.fail(place, f"{nbytes} bytes are said to be here, but the file ends before")
        content = os.pread(self.descriptor, nbytes, place)
        if len(content) != nbytes:
            self.fail(place, "the file became shorter while it was read")
        return content

    def peek(self, place: int, nbytes: int) -> bytes:
        """At most `nbytes` at `place`."""
        return self.read(place, max(0, min(nbytes, self.nbytes - place)))


@dataclass(frozen=True)
class Dataset:
    """What a dataset's header says: its type, its shape, and where its bytes are."""

    datatype: bytes
    shape: tuple[int, ...]
    address: int
    nbytes: int


def root_address(file: PartFile) -> int:
    """Where the superblock says that the root group's header is; it must be of our kind."""
    fields = encoder.SUPERBLOCK.unpack(file.read(0, encoder.SUPERBLOCK.size))
    if fields[0] != SIGNATURE:
        file.fail(0, "this is no HDF5 file")
    if fields[1:8] != (0, 0, 0, 0, 0, 8, 8) or fields[18] != 0:
        file.fail(8, "the superblock is not of the kind that dumpcmp writes")
    return int(fields[17])


def messages(file: PartFile, address: int, limit: int = PEEK) -> Iterator[tuple[int, int, bytes]]:
    """Place, kind and body of the messages in the first `limit` bytes of an object header."""
    if address == UNDEFINED or address % 8:
        file.fail(address, "no object header can be here")
    head = file.peek(address, limit)
    if len(head) < OBJECT_HEADER.size:
        file.fail(address, "an object header should be here")
    version, count, _, nbytes = OBJECT_HEADER.unpack_from(head)
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


def hard_links(file: PartFile, address: int, limit: int = PEEK) -> Iterator[tuple[str, int]]:
    """Name and address of the hard links in the first `limit` bytes of a group's header."""
    for place, kind, body in messages(file, address, limit):
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
