"""Lays a part of many small values out anew when it is sealed: without its journal, and densely."""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive import encoder, schema
from dumpcmp.archive.encoder import DATASET_ADDRESS, LINK_COUNT_AT, padded
from dumpcmp.archive.schema import ABSENT, ALIGNMENT, JOURNAL_AT, NO_ROW, PREFIX_HEADER, ROW_TYPE
from dumpcmp.archive.write.objects import Group, Template

FEWEST = 32  # values: a part of fewer keeps its journal and its attributes
MEAN_NBYTES = 4096  # of a value: one of larger ones would take long to copy, and gain little
_AT_ONCE = 8 << 20  # bytes that are copied together
_DEFLATED = 1024  # bytes of an index dataset that are worth compressing

DatasetMaker = Callable[[bytes, Sequence[int], bytes | bytearray, int], bytes]
_Bytes = NDArray[np.uint8]


class Sealing(Protocol):
    """A part that is about to be sealed, as its writer knows it."""

    descriptor: int
    nonce: int
    number: int
    facts: dict[str, Any]
    rows: bytearray
    calls: list[bytes]
    forms: list[Template]
    call_groups: list[Group]
    groups: dict[tuple[str, ...], Group]
    root: Group
    num_links_to: dict[int, int]
    outside: dict[int, tuple[str, str]]

    def index(self, start: int, rows: bytes | bytearray, dataset: DatasetMaker) -> bytes:
        """The index group and its datasets, to lie at `start`."""


def is_loose(part: Sealing) -> bool:
    """Whether what a part says of its values takes more room than it should."""
    rows = np.frombuffer(part.rows, ROW_TYPE)
    if len(rows) < FEWEST:
        return False
    own = rows["nbytes"][(rows["call"] != ABSENT) & (rows["same"] == NO_ROW)]
    return int(own.sum()) <= MEAN_NBYTES * len(rows)


def lay_densely(part: Sealing, draft: Path, *, sync: bool) -> None:
    """Write what `part` holds to `draft`, as a whole and sealed part."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(draft, flags, 0o644)
    try:
        mapping = mmap.mmap(part.descriptor, 0, prot=mmap.PROT_READ)
        _Laying(part, descriptor, np.frombuffer(mapping, np.uint8)).write()
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Laying:
    """Writes one part anew, from its first byte to its last."""

    def __init__(self, part: Sealing, descriptor: int, room: _Bytes) -> None:
        self.part, self.descriptor, self.room = part, descriptor, room
        self.rows: NDArray[np.void] = np.frombuffer(part.rows, ROW_TYPE).copy()
        self.title = bytearray(schema.text_prefix(schema.json_text(part.facts)))
        schema.write_fields(self.title, schema.PART, part.nonce, 0, JOURNAL_AT, 0)
        self.begin = JOURNAL_AT + len(self.title)  # of the record that holds all else
        self.end = self._written = self.begin + PREFIX_HEADER
        self._waiting: list[memoryview] = []  # what lies behind all that is written

    def put(self, content: bytes | _Bytes) -> int:
        """Append `content`; gives where it lies. Little is written at once with what comes next."""
        at = self.end
        octets = memoryview(content if isinstance(content, bytes) else content.reshape(-1).data)
        self._waiting.append(octets)
        self.end += len(octets)
        if self.end - self._written >= _AT_ONCE:
            self._write_waiting()
        return at

    def _write_waiting(self) -> None:
        rest = memoryview(b"".join(self._waiting))
        self._waiting.clear()
        while rest:
            written = os.pwrite(self.descriptor, rest, self._written)
            rest, self._written = rest[written:], self._written + written

    def write(self) -> None:
        rows = self.rows
        own = np.flatnonzero((rows["same"] == NO_ROW) & (rows["call"] != ABSENT))
        own = own[np.argsort(rows["form"][own], kind="stable")]
        numbers, starts = np.unique(rows["form"][own], return_index=True)
        counts = self._link_counts()
        for number, places in zip(numbers, np.split(own, starts[1:]), strict=False):
            self._put_values(self.part.forms[number], places, counts)
        self._follow_links()
        self._put_calls()
        root = self._put_groups()
        self._write_waiting()
        prefix = bytearray(PREFIX_HEADER)
        nbytes = self.end - self.begin - PREFIX_HEADER
        schema.write_fields(prefix, schema.DENSE, self.part.nonce, 1, self.begin, nbytes)
        os.pwrite(self.descriptor, encoder.dense_superblock(root, self.end), 0)
        os.pwrite(self.descriptor, bytes(self.title) + bytes(prefix), JOURNAL_AT)

    def _link_counts(self) -> NDArray[np.uint32]:
        """How many hard links lead to each row."""
        counts = np.ones(len(self.rows), "<u4")
        linked = self.part.num_links_to
        counts[list(linked)] += np.array(list(linked.values()), "<u4")
        return counts

    def _put_values(
        self, form: Template, own: NDArray[np.intp], counts: NDArray[np.uint32]
    ) -> None:
        """All values of a form, each its header and its bytes."""
        rows, header = self.rows, form.bare_header
        start = len(header)
        size = start + padded(form.nbytes)
        for places in _pieces(own, size):
            block = np.zeros((len(places), size), np.uint8)
            block[:, :start] = np.frombuffer(header, np.uint8)
            headers = self.end + size * np.arange(len(places), dtype="<u8")
            block[:, LINK_COUNT_AT : LINK_COUNT_AT + 4] = _octets(counts[places])
            if form.nbytes:
                block[:, DATASET_ADDRESS : DATASET_ADDRESS + 8] = _octets(headers + start)
                block[:, start : start + form.nbytes] = self._bytes(rows["offset"][places], form)
                rows["offset"][places] = headers + start
            rows["header"][places] = headers
            self.put(block)

    def _bytes(self, offsets: NDArray[np.uint64], form: Template) -> _Bytes:
        """The bytes of values of one form, which lie at multiples of 64 in the part."""
        units = padded(form.nbytes, ALIGNMENT) // ALIGNMENT
        whole = self.room[: len(self.room) // ALIGNMENT * ALIGNMENT].reshape(-1, ALIGNMENT)
        places = (offsets // ALIGNMENT).astype(np.intp)[:, None] + np.arange(units)
        found: _Bytes = whole[places].reshape(len(offsets), -1)[:, : form.nbytes]
        return found

    def _follow_links(self) -> None:
        """Let links say where the values now lie that they lead to.

        Of those in other parts nobody knows; and one may lead to a row that never was.
        """
        rows = self.rows
        linked = (rows["same"] != NO_ROW) & (rows["call"] != ABSENT)
        outside = np.array(list(self.part.outside), np.intp)
        linked[outside] = False
        inside = np.flatnonzero(linked)
        for name in ("header", "offset"):
            rows[name][inside] = rows[name][rows["same"][inside]]
            rows[name][outside] = 0

    def _put_calls(self) -> None:
        """The groups of calls: those that have the same slots are alike but for the addresses."""
        alike: dict[tuple[int, ...], list[tuple[int, Sequence[int]]]] = defaultdict(list)
        forms = self.rows["form"].tolist()
        for call, places in self._rows_of_calls():
            if self.part.call_groups[call].parent is None:  # it was lost
                continue
            if any(place in self.part.outside for place in places):
                self._put_call(call, places)
            else:
                alike[tuple([forms[place] for place in places])].append((call, places))
        for numbers, calls in alike.items():
            self._put_alike([self.part.forms[number].slot for number in numbers], calls)

    def _rows_of_calls(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Each call, and its rows."""
        found: list[list[int]] = [[] for _ in self.part.calls]
        for place, call in enumerate(self.rows["call"].tolist()):
            if call != ABSENT:
                found[call].append(place)
        return enumerate(found)

    def _put_alike(self, slots: list[str], calls: list[tuple[int, Sequence[int]]]) -> None:
        header, places = _bare_group(tuple(slots))
        block = np.tile(header, (len(calls), 1))
        rows = np.array([rows for _, rows in calls], np.intp).reshape(len(calls), len(slots))
        for column, place in enumerate(places):
            addresses = self.rows["header"][rows[:, column]].astype("<u8")
            block[:, place : place + 8] = _octets(addresses)
        start = self.put(block)
        for number, (call, _) in enumerate(calls):
            self.part.call_groups[call].moved(start + number * len(header))

    def _put_call(self, call: int, places: Sequence[int]) -> None:
        """A call whose values do not all lie in this part."""
        group = Group(None)
        for place in places:
            slot = self.part.forms[self.rows["form"][place]].slot
            if place in self.part.outside:
                group.add(encoder.external_link(slot, group.num_links, *self.part.outside[place]))
            else:
                address = int(self.rows["header"][place])
                group.add(encoder.hard_link(slot, group.num_links, address))
        self.part.call_groups[call].moved(self.put(group.header()))

    def _put_groups(self) -> int:
        """The groups of modules, the index and the root; gives where that is."""
        called = set(map(id, self.part.call_groups))
        modules = [group for group in self.part.groups.values() if id(group) not in called]
        for group in sorted(modules, key=attrgetter("depth"), reverse=True):
            group.moved(self.put(group.header()))
        root = self.part.root
        at = self.put(self.part.index(self.end, self.rows.tobytes(), dataset=_compressed))
        root.foremost = encoder.hard_link(schema.INDEX_GROUP, root.num_links, at)
        return self.put(root.header())


@lru_cache(maxsize=1024)
def _bare_group(slots: tuple[str, ...]) -> tuple[_Bytes, list[int]]:
    """The header of a group that has these links, and where the addresses of them lie."""
    links, at = b"", len(encoder.bare_group(b"", 0))
    places = []
    for slot in slots:
        link, within = encoder.bare_link(slot)
        places.append(at + len(links) + within)
        links += link
    return np.frombuffer(encoder.bare_group(links, len(slots)), np.uint8), places


def _compressed(kind: bytes, shape: Sequence[int], content: bytes | bytearray, start: int) -> bytes:
    """An index dataset; a text is an array of one where it is compressed."""
    if len(content) < _DEFLATED:
        return encoder.dataset(kind, shape, content, start)
    return encoder.deflated(kind, shape[0] if shape else 1, content, start)


def _pieces(places: NDArray[np.intp], size: int) -> Iterator[NDArray[np.intp]]:
    most = max(1, _AT_ONCE // size)
    yield from (places[start : start + most] for start in range(0, len(places), most))


def _octets(numbers: NDArray[Any]) -> _Bytes:
    """Numbers as rows of their bytes."""
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), -1)
