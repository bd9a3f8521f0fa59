"""Where all lies in a part that is laid out densely: found out once for steps that are alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive import encoder
from dumpcmp.archive.encoder import padded
from dumpcmp.archive.schema import ABSENT, NO_ROW, ROW_TYPE
from dumpcmp.archive.write.objects import Group, Template
from dumpcmp.archive.write.part_tree import LaidTree, PartTree, ToldCall

MOST_KNOWN = 4  # arrangements: of models that take turns
MOST_NBYTES = 4 << 20  # of the rows of one that is kept

OctetArray = NDArray[np.uint8]
_Key = tuple[Any, ...]
_Found = TypeVar("_Found", "Arrangement", LaidTree)


class Arranged(Protocol):
    """A part that is about to be laid out, as its writer knows it."""

    rows: bytearray
    told: list[ToldCall]
    forms: list[Template]
    tree: PartTree
    outside: dict[int, tuple[str, str]]

    @property
    def calls(self) -> list[bytes]: ...

    @property
    def num_rows(self) -> int: ...

    def row(self, number: int) -> tuple[Any, ...]: ...


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Where values, groups and links of a dense part lie. It holds no value, and no digest."""

    places: NDArray[np.intp]  # the rows of values that lie here, in the order in which they do
    sizes: NDArray[np.int64]  # what each row takes, header and bytes
    headers: NDArray[np.uint64]  # the addresses of each row
    offsets: NDArray[np.uint64]
    counts: NDArray[np.uint32]  # hard links to each row
    tree: LaidTree  # behind the values


class Arrangements:
    """How parts before were laid out, each by all that decides it."""

    def __init__(self) -> None:
        self._known: dict[_Key, Arrangement] = {}
        self._trees: dict[_Key, LaidTree] = {}

    def of(self, part: Arranged, begin: int, start: int) -> Arrangement:
        """How a dense part is laid out that begins there, and its values at `start`.

        That is decided by its calls, its forms, its links to other parts, and its rows without
        addresses and digests.
        """
        key = _key_of(part, begin, ("header", "offset"))
        known = self._known.get(key) if key else None
        return known or _kept(self._known, key, arrange(part, start))

    def tree_of(self, part: Arranged, start: int) -> LaidTree:
        """The groups of a part that keeps its journal, to lie at `start`; its tree has not grown.

        They are decided by the same, and by the addresses of all rows.
        """
        key = _key_of(part, start, ())
        known = self._trees.get(key) if key else None
        return known or _kept(self._trees, key, part.tree.lay_all(part, start))


def _key_of(part: Arranged, begin: int, without: Sequence[str]) -> _Key | None:
    if len(part.rows) > MOST_NBYTES:
        return None
    rows = np.frombuffer(part.rows, ROW_TYPE).copy()
    rows["digest"] = b""
    for name in without:
        rows[name] = 0
    outside = tuple(part.outside.items())
    return begin, tuple(part.calls), tuple(part.forms), rows.tobytes(), outside


def _kept(known: dict[_Key, _Found], key: _Key | None, found: _Found) -> _Found:
    """Have `found` be known from now on; the oldest gives way."""
    if key is not None:
        if len(known) >= MOST_KNOWN:
            del known[next(iter(known))]
        known[key] = found
    return found


def link_counts(part: Arranged) -> NDArray[np.uint32]:
    """How many hard links lead to each row of `part`."""
    rows = np.frombuffer(part.rows, ROW_TYPE)
    linked = (rows["same"] != NO_ROW) & (rows["call"] != ABSENT)
    linked[list(part.outside)] = False
    counts = 1 + np.bincount(rows["same"][linked], minlength=len(rows))
    return counts.astype("<u4")


def arrange(part: Arranged, start: int) -> Arrangement:
    """Find out where all of `part` lies if its values begin at `start`, form by form."""
    rows: NDArray[np.void] = np.frombuffer(part.rows, ROW_TYPE).copy()
    own = np.flatnonzero((rows["same"] == NO_ROW) & (rows["call"] != ABSENT))
    own = own[np.argsort(rows["form"][own], kind="stable")]
    lengths = np.array([len(form.bare_header) for form in part.forms] or [0])
    beyond = np.array([padded(form.nbytes) for form in part.forms] or [0])
    sizes = np.zeros(len(rows), np.int64)
    sizes[own] = (lengths + beyond)[rows["form"][own]]
    ends = start + np.cumsum(sizes[own])
    rows["header"][own] = ends - sizes[own]
    full = own[rows["nbytes"][own] > 0]
    rows["offset"][full] = rows["header"][full] + lengths[rows["form"][full]].astype("<u8")
    _follow_links(rows, part.outside)
    grouping = _Grouping(part, rows, int(ends[-1]) if len(ends) else start)
    groups = grouping.lay()
    return Arrangement(
        own, sizes, rows["header"].copy(), rows["offset"].copy(), link_counts(part),
        LaidTree(groups, bytes(part.tree.root.links), part.tree.root.num_links),
    )  # fmt: skip


def _follow_links(rows: NDArray[np.void], outside_rows: Sequence[int] | dict[int, Any]) -> None:
    """Let links say where the values now lie that they lead to.

    Of those in other parts nobody knows; and one may lead to a row that never was.
    """
    linked = (rows["same"] != NO_ROW) & (rows["call"] != ABSENT)
    outside = np.array(list(outside_rows), np.intp)
    linked[outside] = False
    inside = np.flatnonzero(linked)
    for name in ("header", "offset"):
        rows[name][inside] = rows[name][rows["same"][inside]]
        rows[name][outside] = 0


class _Grouping:
    """Lays out the groups of calls and of modules, from `start` on."""

    def __init__(self, part: Arranged, rows: NDArray[np.void], start: int) -> None:
        self.part, self.rows, self.start = part, rows, start
        self._block = bytearray()

    def lay(self) -> bytes:
        """All groups but the root, which is told where they are."""
        self.part.tree.grow_calls(self.part.told)
        self._put_calls()
        self._put_modules()
        return bytes(self._block)

    def _put(self, content: bytes | memoryview) -> int:
        at = self.start + len(self._block)
        self._block += content
        return at

    def _put_calls(self) -> None:
        """The groups of calls: those that have the same slots are alike but for the addresses."""
        alike: dict[tuple[int, ...], list[tuple[int, Sequence[int]]]] = defaultdict(list)
        forms = self.rows["form"].tolist()
        for call, places in self._rows_of_calls():
            if self.part.tree.call_groups[call].parent is None:  # it was lost
                continue
            if any(place in self.part.outside for place in places):
                self._put_call(call, places)
            else:
                alike[tuple([forms[place] for place in places])].append((call, places))
        for numbers, calls in alike.items():
            self._put_alike([self.part.forms[number].slot for number in numbers], calls)

    def _rows_of_calls(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Each call, and its rows."""
        found: list[list[int]] = [[] for _ in self.part.told]
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
            block[:, place : place + 8] = octets_of(addresses)
        start = self._put(block.reshape(-1).data)
        for number, (call, _) in enumerate(calls):
            self.part.tree.call_groups[call].moved(start + number * len(header))

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
        self.part.tree.call_groups[call].moved(self._put(group.header()))

    def _put_modules(self) -> None:
        called = set(map(id, self.part.tree.call_groups))
        modules = [group for group in self.part.tree.groups.values() if id(group) not in called]
        for group in sorted(modules, key=attrgetter("depth"), reverse=True):
            group.moved(self._put(group.header()))


@lru_cache(maxsize=1024)
def _bare_group(slots: tuple[str, ...]) -> tuple[OctetArray, list[int]]:
    """The header of a group that has these links, and where the addresses of them lie."""
    links, at = b"", len(encoder.bare_group(b"", 0))
    places = []
    for slot in slots:
        link, within = encoder.bare_link(slot)
        places.append(at + len(links) + within)
        links += link
    return np.frombuffer(encoder.bare_group(links, len(slots)), np.uint8), places


def octets_of(numbers: NDArray[Any]) -> OctetArray:
    """Numbers as rows of their bytes."""
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), -1)
