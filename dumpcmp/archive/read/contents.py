"""A part opened with suspicion: its bytes by address, its HDF5 objects, its index.

Every address and length is checked before use.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple, NoReturn
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive import encoder, schema
from dumpcmp.archive.encoder import ADDRESS, MESSAGE, OBJECT_HEADER, SIGNATURE, UNDEFINED
from dumpcmp.archive.schema import ABSENT, INDEX_GROUP, ROW_TYPE, Form
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import Op, Slot
from dumpcmp.nouns.record import Call, Location

LARGEST_READ = 256 << 20  # bytes of an index or a group that a reader is willing to hold
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
        content = os.pread(self.descriptor, nbytes, place)
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


_NUM_FIELDS = len(schema.CALL_FIELDS)
LISTED_LOST = json.loads(schema.call_json(schema.LOST_CALL))


class ListedCalls(Sequence[Any]):
    """The calls of a part as its index lists them, and as they were read of a model's step.

    Ranks that ran the same list the same bytes, and then share one of these. What `unpack` gives is
    asked for when a call is.
    """

    __slots__ = ("__weakref__", "_listed", "_unpack", "ops", "read")

    def __init__(
        self, listed: Iterable[Any] = (), unpack: Callable[[], Iterable[Any]] | None = None
    ) -> None:
        self._unpack = unpack
        self._listed = None if unpack else list(map(schema.completed_call, listed))
        self.ops: list[tuple[Op, int]] | None = None  # until they are asked for, and found right
        self.read: dict[tuple[str, int], dict[int, Call]] = {}

    @property
    def is_read(self) -> bool:
        """Whether the calls are known, and not only where they are told."""
        return self._listed is not None

    @property
    def listed(self) -> list[Any]:
        """The calls, each as a list of CALL_FIELDS, if it is sound."""
        if self._listed is None:
            assert self._unpack is not None
            self._listed = list(map(schema.completed_call, self._unpack()))
            self._unpack = None
        return self._listed

    def __len__(self) -> int:
        return len(self.listed)

    def __getitem__(self, number: Any) -> Any:
        return self.listed[number]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ListedCalls) and self.listed == other.listed)

    __hash__ = object.__hash__


_MOST_LISTS = 8  # of forms, that are kept in mind
_FORMS: dict[bytes, list[Form]] = {}  # by their bytes
_LISTED: WeakValueDictionary[bytes, ListedCalls] = WeakValueDictionary()  # by their bytes


@dataclass(eq=False)
class Contents:
    """The rows of a part, and the calls and forms that they refer to by number."""

    path: Path
    rows: NDArray[np.void]
    listed_calls: ListedCalls
    forms: list[Form]
    model: str = ""
    step: int = 0
    sealed: bool = False  # the part has its index: nothing more will be written to it
    problems: tuple[str, ...] = ()
    elsewhere: Mapping[int, tuple[Path, int]] = field(default_factory=dict)  # row -> in a ring
    datasets: Mapping[int, str] = field(default_factory=dict)  # row -> what cannot be mapped

    def __post_init__(self) -> None:
        """Raise where a row refers to a call or form that does not exist, as far as they are known.

        Calls that are not read yet are held against the rows when they are asked for.
        """
        self._check("form", len(self.forms))
        if self.listed_calls.is_read:
            _ = self.ops

    def _check(self, column: str, limit: int) -> None:
        numbers = self.rows[column][self.rows["call"] != ABSENT]
        if numbers.size and int(numbers.max()) >= limit:
            raise damaged(self.path, f"a {column} below {limit}", int(numbers.max()))

    @cached_property
    def ops(self) -> list[tuple[Op, int]]:
        """Op and number of each call."""
        if self.listed_calls.ops is None:
            self.listed_calls.ops = [self._op(listed) for listed in self.listed_calls.listed]
        self._check("call", len(self.listed_calls.ops))
        return self.listed_calls.ops

    def _op(self, listed: Any) -> tuple[Op, int]:
        if isinstance(listed, list) and len(listed) == _NUM_FIELDS:
            op, call = listed[:2]
            if isinstance(op, str) and isinstance(call, int):
                return Op(op), call
        raise damaged(self.path, "a call", listed)

    @cached_property
    def slots(self) -> list[Slot]:
        """The slot of each form."""
        return [Slot(form.slot) for form in self.forms]

    @cached_property
    def places(self) -> dict[tuple[str, int, str], int]:
        """The row of each value by its name; the first of a name stays."""
        ops, slots = self.ops, self.slots
        calls, forms = self.rows["call"].tolist(), self.rows["form"].tolist()
        found: dict[tuple[str, int, str], int] = {}
        for row, (call, form) in enumerate(zip(calls, forms, strict=True)):
            if call != ABSENT:
                found.setdefault((*ops[call], slots[form]), row)
        return found

    def calls(self) -> dict[int, Call]:
        """The calls by their numbers, checked; those that were lost are left out."""
        place = (self.model, self.step)
        if place not in self.listed_calls.read:
            self.listed_calls.read[place] = self._read_calls()
        return self.listed_calls.read[place]

    def _read_calls(self) -> dict[int, Call]:
        found: dict[int, Call] = {}
        for number, listed in enumerate(self.listed_calls.listed):
            try:
                if listed != LISTED_LOST:
                    found[number] = schema.read_call(listed, self.model, self.step)
            except (TypeError, ValueError):
                raise damaged(self.path, "a call", listed) from None
        return found

    def has_row(self, row: int) -> bool:
        """Whether `row` is there and was not lost."""
        return row < len(self.rows) and self.row(row)[0] != ABSENT

    def row(self, row: int) -> tuple[Any, ...]:
        """The columns of `row`."""
        found: tuple[Any, ...] = self.rows[row].item()
        return found

    def name(self, row: int) -> tuple[str, int, str]:
        """Op, call and slot of the value in `row`."""
        call, form = self.row(row)[:2]
        return *self.ops[call], self.forms[form].slot

    def location(self, row: int, offset: int, nbytes: int) -> Location:
        """Where the bytes of `row` lie, which are at `offset` unless a ring still has them."""
        path, offset = self.elsewhere.get(row, (self.path, offset))
        return Location(path, offset, nbytes, self.datasets.get(row, ""))


def damaged_at(path: Path, place: int, what: str) -> ArchiveError:
    """The error of a part that has something else at `place` than `what` says."""
    return ArchiveError(
        f"{path} is damaged at byte {place}: {what}", hint="dumpcmp audit says what is left of it"
    )


def damaged(path: Path, what: str, found: Any) -> ArchiveError:
    """The error of an index that has `found` where `what` should be."""
    return ArchiveError(
        f"{path}: {what} should be here, not {str(found)[:80]!r}",
        hint="the index is damaged; dumpcmp audit says what is left of the part",
    )


def read_forms(path: Path, listed: Iterable[Any]) -> list[Form]:
    """The forms that the part at `path` lists; None stands for one that was lost."""
    found = []
    for each in listed:
        try:
            found.append(schema.LOST_FORM if each is None else schema.read_form(each))
        except (TypeError, ValueError):
            raise damaged(path, "a form", each) from None
    return found


def index_address(file: PartFile) -> int | None:
    """Where the index of a part is; None where it has none yet: more may be written to it."""
    first = dict(islice(hard_links(file, root_address(file)), 1))  # the index comes first
    return first.get(INDEX_GROUP)


def read_index(file: PartFile) -> Contents | None:
    """The contents of a sealed part by its index; None where there is none yet."""
    if (address := index_address(file)) is None:
        return None
    file.need(address, root_address(file))
    links = dict(hard_links(file, address))
    if not links.keys() >= set(schema.INDEX_DATASETS):
        file.fail(address, "the index is not whole")
    rows = _read_rows(file, links["records"])
    calls = _read_calls(file, links["calls"])
    forms = _read_forms(file, links["forms"])
    return Contents(file.path, rows, calls, forms, sealed=True)


def _read_calls(file: PartFile, address: int) -> ListedCalls:
    """The calls of a part; what zlib has found to be whole is read when it is asked for."""
    found, content = index_content(file, address)
    calls = _LISTED.get(content)
    if calls is None:
        unpack = partial(_listed_in, content, file.path, found.address)
        calls = ListedCalls(unpack=unpack) if found.is_packed else ListedCalls(unpack())
        _LISTED[content] = calls
    return calls


def _read_forms(file: PartFile, address: int) -> list[Form]:
    """The forms of a part; the other side of a comparison often lists the same bytes."""
    found, content = index_content(file, address)
    forms = _FORMS.get(content)
    if forms is None:
        forms = read_forms(file.path, _listed_in(content, file.path, found.address))
        while len(_FORMS) >= _MOST_LISTS:
            _FORMS.pop(next(iter(_FORMS), b""), None)  # another thread may have been faster
        _FORMS[content] = forms
    return forms


def _read_rows(file: PartFile, address: int) -> NDArray[np.void]:
    (found, content), wanted = index_content(file, address), encoder.numpy_datatype(ROW_TYPE)
    if not found.datatype.startswith(wanted) or len(found.shape) != 1:
        file.fail(address, "the index has other columns than this version of dumpcmp knows")
    if found.nbytes != found.shape[0] * ROW_TYPE.itemsize:
        file.fail(address, "the index has another length than its rows")
    return np.frombuffer(content, ROW_TYPE)


def _listed_in(content: bytes, path: Path, place: int) -> list[Any]:
    try:
        listed = json.loads(content)
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list):
        raise damaged_at(path, place, "a JSON list should be here")
    return listed
