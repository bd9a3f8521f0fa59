"""Reads .npy and .npz without any pickle: headers, then bytes by ranges or out of the zip."""

from __future__ import annotations

import io
import zipfile
from contextlib import ExitStack
from functools import cached_property
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dumpcmp.archive.copies import copied_here
from dumpcmp.archive.schema import checked_sizes
from dumpcmp.importing.foreign import (
    ArraySource,
    FileBytes,
    Foreign,
    ForeignFile,
    ForeignFileError,
    Listed,
    RangeSource,
)
from dumpcmp.nouns.budgets import MOST_INFLATED, NUMPY, ZIP, Spending
from dumpcmp.nouns.record import Source
from dumpcmp.nouns.value import DTYPES

LARGEST_HEADER = NUMPY.nbytes  # that may stand before the elements
_MAGIC = b"\x93NUMPY"
_SUFFIX = ".npy"


class Header:
    """What stands before the elements of an array."""

    def __init__(self, start: bytes, told_by: ForeignFile, member: str = "") -> None:
        where = f"{member}: " if member else ""
        file = io.BytesIO(start)
        if not start.startswith(_MAGIC):  # numpy's own message would quote what it has instead
            raise told_by.wrong(
                f"{where}its header makes no sense: it does not begin as a .npy does"
            )
        try:
            version = npy.read_magic(file)
            read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
            shape, self.is_fortran, self.dtype = read(file, max_header_size=LARGEST_HEADER)
            self.shape: tuple[int, ...] = checked_sizes(shape)
        except KeyError:
            raise told_by.wrong(f"{where}version {version} of .npy holds no plain array") from None
        except Exception as error:  # what a damaged header makes of Python's own parser
            said = str(error).partition("\n")[0]
            raise told_by.wrong(f"{where}its header makes no sense: {said}") from None
        if self.dtype.hasobject:
            raise told_by.wrong(
                f"{where}it holds Python objects, which only unpickling could read",
                "unpickling runs what a file says: write arrays of numbers",
            )
        self.nbytes = file.tell()  # of the header

    @property
    def is_plain(self) -> bool:
        """Whether the elements lie as an archive has them."""
        order = self.dtype.newbyteorder("<").str == self.dtype.str
        return order and (not self.is_fortran or len(self.shape) < 2)

    def value(self, file: ForeignFile, name: str) -> Foreign:
        """What it says, as a value of `file`."""
        known = self.dtype.names is None and self.dtype.kind in "biufc"
        called = self.dtype.name if known else self.dtype.str
        problem = "" if called in DTYPES else f"elements of type {called} cannot be stored"
        if self.dtype.kind == "V":
            problem += "; numpy has no name for a bfloat16: write it as .safetensors or .pt"
        return Foreign(file.path, name, called, self.shape, problem)

    def array(self, content: bytes) -> NDArray[np.generic]:
        """The elements as an archive has them: dense, row by row, the least byte first."""
        bits = np.frombuffer(content, self.dtype)
        bits = bits.reshape(self.shape[::-1]).T if self.is_fortran else bits.reshape(self.shape)
        plain: NDArray[np.generic] = bits.astype(self.dtype.newbyteorder("<"), copy=False)
        return plain

    @property
    def total(self) -> int:
        """Bytes of the header and all elements."""
        return self.nbytes + int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


class NpyFile(ForeignFile):
    """A file that is one array."""

    @cached_property
    def _octets(self) -> FileBytes:
        return FileBytes(self.path)

    @cached_property
    def _header(self) -> Header:
        start = self._octets.at(0, min(LARGEST_HEADER, self._octets.nbytes))
        header = Header(start, self)
        if header.total != self._octets.nbytes:
            raise self.wrong(
                f"it has {self._octets.nbytes} bytes, and its header asks for {header.total}",
                "it was cut short, or holds several arrays: write one array a file",
            )
        return header

    def listed(self) -> Listed:
        return Listed((self._header.value(self, ""),))

    def source(self, value: Foreign) -> Source:
        start, nbytes = self._header.nbytes, value.nbytes
        if self._header.is_plain:
            return RangeSource(self._octets, start, nbytes)
        return ArraySource(self._header.array(self._octets.at(start, nbytes)))


class NpzFile(ForeignFile):
    """A zip of arrays, deflated or not."""

    def __enter__(self) -> NpzFile:
        self._open, self._headers = ExitStack(), dict[str, Header]()
        try:
            self._zip = zipfile.ZipFile(self._open.enter_context(copied_here(self.path)))
        except Exception as error:  # of zipfile, and of what reads names and numbers in it
            self._open.close()
            raise self.wrong(f"it is no .npz: {error}") from None
        self._open.enter_context(self._zip)
        return self

    def __exit__(self, *_: Any) -> None:
        self._open.close()

    @cached_property
    def _members(self) -> dict[str, zipfile.ZipInfo]:
        found: dict[str, zipfile.ZipInfo] = {}
        spending = Spending(ZIP, self.path, 0)
        spending.name(len(self._zip.infolist()))
        packed = sum(member.compress_size for member in self._zip.infolist())
        if self._zip.start_dir < packed:
            raise self.wrong(f"its members have {packed} bytes in the zip, and the file has less")
        for member in self._zip.infolist():
            name = member.filename.removesuffix(_SUFFIX)
            if name in found or not member.filename.endswith(_SUFFIX):
                told = "stands in it twice" if name in found else "is no array"
                raise self.wrong(f"{member.filename!r} {told}")
            found[name] = member
        return found

    def listed(self) -> Listed:
        return Listed(tuple(self._header(name).value(self, name) for name in self._members))

    def has(self, value: Foreign) -> bool:
        """Whether `value` is what the file has of its name; the others are not looked at."""
        name = value.name
        return name in self._members and self._header(name).value(self, name) == value

    def _header(self, name: str) -> Header:
        if name not in self._headers:
            self._headers[name] = self._read_header(name)
        return self._headers[name]

    def _read_header(self, name: str) -> Header:
        member = self._members[name]
        with self._member(name) as file:
            header = Header(self._read(file, name, LARGEST_HEADER), self, name)
        if header.total != member.file_size or member.file_size > _most(member):
            raise self.wrong(
                f"{name}: it has {member.file_size} bytes, {member.compress_size} in the zip, and "
                f"its header asks for {header.total}"
            )
        return header

    def _member(self, name: str) -> IO[bytes]:
        try:
            return self._zip.open(self._members[name])
        except Exception as error:  # damaged, encrypted, of a method that nobody knows
            raise self.wrong(f"{name}: {error}") from None

    def _read(self, file: IO[bytes], name: str, nbytes: int) -> bytes:
        try:
            return file.read(nbytes)
        except Exception as error:  # of zipfile, and of each way to compress
            raise self.wrong(f"{name}: {error}") from None

    def source(self, value: Foreign) -> Source:
        header = self._header(value.name)
        if header.is_plain:
            return _Inflated(self, value, header)
        with self._member(value.name) as file:
            self._read(file, value.name, header.nbytes)
            return ArraySource(header.array(self._read(file, value.name, value.nbytes)))


class _Inflated:
    """A Source over a member of a zip, which is read piece by piece, to its checksum."""

    def __init__(self, file: NpzFile, value: Foreign, header: Header) -> None:
        self._file, self._value, self._header = file, value, header
        self.nbytes = value.nbytes

    def copy_into(self, room: memoryview) -> None:
        name = self._value.name
        with self._file._member(name) as file:
            self._file._read(file, name, self._header.nbytes)
            at = 0
            while piece := self._file._read(file, name, min(1 << 20, len(room) - at) or 1):
                if at + len(piece) > len(room):
                    raise ForeignFileError(f"{self._file.path}: {name} is longer than it says")
                room[at : at + len(piece)] = piece
                at += len(piece)
        if at != len(room):
            raise ForeignFileError(f"{self._file.path}: {name} is shorter than it says")


def _most(member: zipfile.ZipInfo) -> int:
    """Bytes that a member can have at most."""
    return MOST_INFLATED * (member.compress_size + 64)
