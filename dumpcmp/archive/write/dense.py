"""Lays a part of many small values out anew when it is sealed: without its journal, and densely."""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive import encoder, schema
from dumpcmp.archive.encoder import DATASET_ADDRESS, LINK_COUNT_AT, padded
from dumpcmp.archive.schema import ABSENT, ALIGNMENT, JOURNAL_AT, NO_ROW, PREFIX_HEADER, ROW_TYPE
from dumpcmp.archive.write.arrangement import (
    Arranged,
    Arrangement,
    Arrangements,
    OctetArray,
    octets_of,
)
from dumpcmp.nouns.built import built

FEWEST = 32  # values: a part of fewer keeps its journal and its attributes
MEAN_NBYTES = 3 << 10  # of a value: larger ones are not worth writing twice for a fifth of room
_AT_ONCE = 8 << 20  # bytes that are copied together
_LARGE = 1 << 18  # bytes that are written by themselves
_DEFLATED = 1024  # bytes of an index dataset that are worth compressing
_MOST_KEPT = 1 << 20  # bytes of text of which it is kept what they are compressed to
_core: Any = built("dumpcmp.archive.write._finish")

DatasetMaker = Callable[[bytes, Sequence[int], bytes | bytearray, int], bytes]


class Sealing(Arranged, Protocol):
    """A part that is about to be sealed, as its writer knows it."""

    descriptor: int
    nonce: int
    facts: dict[str, Any]

    def index(self, start: int, rows: bytes | bytearray, dataset: DatasetMaker) -> bytes:
        """The index group and its datasets, to lie at `start`."""


def is_loose(part: Sealing) -> bool:
    """Whether what a part says of its values takes more room than it should."""
    rows = np.frombuffer(part.rows, ROW_TYPE)
    if len(rows) < FEWEST:
        return False
    own = rows["nbytes"][(rows["call"] != ABSENT) & (rows["same"] == NO_ROW)]
    return int(own.sum()) <= MEAN_NBYTES * len(rows)


def lay_densely(part: Sealing, draft: Path, known: Arrangements, *, sync: bool) -> None:
    """Write what `part` holds to `draft`, as a whole and sealed part.

    Where `known` knows how a part before was laid out that was like it, that is done again.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(draft, flags, 0o644)
    try:
        mapping = mmap.mmap(part.descriptor, 0, prot=mmap.PROT_READ)
        _Laying(part, descriptor, np.frombuffer(mapping, np.uint8)).write(known)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Laying:
    """Writes one part anew, from its first byte to its last."""

    def __init__(self, part: Sealing, descriptor: int, room: OctetArray) -> None:
        self.part, self.descriptor, self.room = part, descriptor, room
        self.rows: NDArray[np.void] = np.frombuffer(part.rows, ROW_TYPE).copy()
        self.title = bytearray(schema.text_prefix(schema.json_text(part.facts)))
        schema.write_fields(self.title, schema.PART, part.nonce, 0, JOURNAL_AT, 0)
        self.begin = JOURNAL_AT + len(self.title)  # of the record that holds all else
        self.end = self._written = self.begin + PREFIX_HEADER
        self._waiting: list[bytes | bytearray] = []  # what lies behind all that is written

    def put(self, content: bytes | bytearray) -> int:
        """Append `content`; gives where it lies. Little is written at once with what comes next."""
        at = self.end
        self._waiting.append(content)
        self.end += len(content)
        if len(content) >= _LARGE or self.end - self._written >= _AT_ONCE:
            self._write_waiting()
        return at

    def _write_waiting(self) -> None:
        waiting = self._waiting
        rest = memoryview(waiting[0] if len(waiting) == 1 else b"".join(waiting))
        waiting.clear()
        while rest:
            written = os.pwrite(self.descriptor, rest, self._written)
            rest, self._written = rest[written:], self._written + written

    def write(self, known: Arrangements) -> None:
        found = known.of(self.part, self.begin, self.end)
        offsets = self.rows["offset"].copy()
        self.rows["header"], self.rows["offset"] = found.headers, found.offsets
        for places in _pieces(found.places, found.sizes):
            self._put_values(places, offsets, found)
        self.put(found.tree.groups)
        at = self.put(self.part.index(self.end, self.rows.tobytes(), dataset=_compressed))
        root = self.put(found.tree.root_header(self.part.tree.root, at))
        self._write_waiting()
        prefix = bytearray(PREFIX_HEADER)
        nbytes = self.end - self.begin - PREFIX_HEADER
        schema.write_fields(prefix, schema.DENSE, self.part.nonce, 1, self.begin, nbytes)
        os.pwrite(self.descriptor, encoder.dense_superblock(root, self.end), 0)
        os.pwrite(self.descriptor, bytes(self.title) + bytes(prefix), JOURNAL_AT)

    def _put_values(
        self, places: NDArray[np.intp], offsets: NDArray[np.uint64], found: Arrangement
    ) -> None:
        """Values that lie one after another: the header of each, and its bytes from `offsets`."""
        block = bytearray(int(found.sizes[places].sum()))
        headers = [form.bare_header for form in self.part.forms]
        if _core is not None:
            _core.lay_values(
                block, self.end, self.room, places, offsets, self.rows, found.counts, headers
            )
        else:
            forms = self.rows["form"][places]
            room = np.frombuffer(block, np.uint8)
            starts = np.flatnonzero(np.diff(forms, prepend=-1))
            for alike in np.split(places, starts[1:]):
                number = self.rows["form"][alike[0]]
                at = int(self.rows["header"][alike[0]]) - self.end
                nbytes = int(found.sizes[alike].sum())
                self._fill(room[at : at + nbytes], number, alike, offsets[alike], found.counts)
        self.put(block)

    def _fill(
        self, room: OctetArray, number: int, places: NDArray[np.intp], offsets: NDArray[np.uint64],
        counts: NDArray[np.uint32],
    ) -> None:  # fmt: skip
        """Fill `room` with the values of one form that lie one after another."""
        form = self.part.forms[number]
        header, nbytes = form.bare_header, form.nbytes
        start, block = len(header), room.reshape(len(places), -1)
        block[:, :start] = np.frombuffer(header, np.uint8)
        block[:, LINK_COUNT_AT : LINK_COUNT_AT + 4] = octets_of(counts[places])
        if nbytes:
            addresses = self.rows["offset"][places]
            block[:, DATASET_ADDRESS : DATASET_ADDRESS + 8] = octets_of(addresses)
            block[:, start : start + nbytes] = self._bytes(offsets, nbytes)

    def _bytes(self, offsets: NDArray[np.uint64], nbytes: int) -> OctetArray:
        """The bytes of values of one size, which lie at multiples of 64 in the part."""
        units = padded(nbytes, ALIGNMENT) // ALIGNMENT
        whole = self.room[: len(self.room) // ALIGNMENT * ALIGNMENT].reshape(-1, ALIGNMENT)
        places = (offsets // ALIGNMENT).astype(np.intp)[:, None] + np.arange(units)
        found: OctetArray = whole[places].reshape(len(offsets), -1)[:, :nbytes]
        return found


@lru_cache(maxsize=8)
def _packed_text(text: bytes) -> bytes:
    """What index datasets of text are compressed to; the same come again in each step."""
    return zlib.compress(text, 1)


def _compressed(kind: bytes, shape: Sequence[int], content: bytes | bytearray, start: int) -> bytes:
    """An index dataset; a text is an array of one where it is compressed."""
    if len(content) < _DEFLATED:
        return encoder.dataset(kind, shape, content, start)
    is_kept = not shape and len(content) <= _MOST_KEPT
    packed = _packed_text(bytes(content)) if is_kept else zlib.compress(content, 1)
    return encoder.deflated(kind, shape[0] if shape else 1, len(content), packed, start)


def _pieces(places: NDArray[np.intp], sizes: NDArray[np.int64]) -> Iterator[NDArray[np.intp]]:
    """`places` in pieces of so many bytes as are written at once, or one."""
    ends = np.cumsum(sizes[places])
    start = 0
    while start < len(places):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _AT_ONCE, "right")))
        yield places[start:stop]
        start = stop
