"""Values in files of other tools: what they are, where they lie, and how their bytes are had."""

from __future__ import annotations

import math
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.stores.urls import RemotePath
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.record import Source
from dumpcmp.nouns.value import DTYPES

_PIECE = 8 << 20  # bytes that are read at once
_KINDS_OF_FILES: dict[Callable[[int], bool], str] = {
    stat.S_ISFIFO: "FIFO",
    stat.S_ISSOCK: "socket",
    stat.S_ISCHR: "device",
    stat.S_ISBLK: "device",
    stat.S_ISDIR: "directory",
}
_DIGITS = re.compile(r"(\d{1,18})")


def in_natural_order(name: str) -> list[int | str]:
    """What sorts names as people count: layers.2 before layers.10."""
    return [int(word) if i % 2 else word for i, word in enumerate(_DIGITS.split(name))]


class ForeignFileError(ArchiveError):
    """A file of another tool that cannot be read for what it says that it is."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """One value of a file: what it is called there, and what it is."""

    file: Path
    name: str  # empty where the file is one value
    dtype: str  # torch's name, or the tool's where torch has none
    shape: tuple[int, ...]
    problem: str = ""  # why its elements cannot be had

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, as an archive has them."""
        if self.problem or self.dtype not in DTYPES:
            return 0
        return math.prod(self.shape) * DTYPES[self.dtype].nbytes


@dataclass(frozen=True, slots=True)
class Listed:
    """What a file has: values in its order, and what else it says."""

    values: tuple[Foreign, ...]
    words: Mapping[str, str] = field(default_factory=dict)  # what is no tensor, by name


class ForeignFile(ABC):
    """A file of another tool, open in a ``with`` block."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @abstractmethod
    def listed(self) -> Listed:
        """What it has, from as few of its bytes as will do."""

    @abstractmethod
    def source(self, value: Foreign) -> Source:
        """The elements of one of its values."""

    def bits(self, value: Foreign) -> NDArray[np.generic]:
        """The elements as bits of their storage type, mapped where the file allows it."""
        room = np.empty(value.nbytes, np.uint8)
        self.source(value).copy_into(room.data)
        return room.view(DTYPES[value.dtype].storage).reshape(value.shape)

    @cached_property
    def _by_name(self) -> dict[str, Foreign]:
        return {each.name: each for each in self.listed().values}

    def has(self, value: Foreign) -> bool:
        """Whether `value` is what the file has of its name."""
        return self._by_name.get(value.name) == value

    def wrong(self, what: str, hint: str = "") -> ForeignFileError:
        """The error that says `what` is wrong with this file."""
        return ForeignFileError(f"{self.path}: {what}", hint=hint or "write that file again")


def check_regular(path: Path) -> None:
    """Refuse what is there and is no regular file: reading a FIFO or a device might never end."""
    if isinstance(path, RemotePath) or not path.exists() or path.is_file():
        return
    mode = path.stat().st_mode
    kind = next((name for is_one, name in _KINDS_OF_FILES.items() if is_one(mode)), "special one")
    raise ForeignFileError(
        f"{path} is no regular file, but a {kind}",
        hint="choose files without it by --files, or remove it",
    )


class FileBytes:
    """The bytes of a file, here or in a store, by ranges."""

    def __init__(self, path: Path) -> None:
        self.path, self.nbytes = path, path.stat().st_size

    def at(self, start: int, nbytes: int) -> bytes:
        """Exactly `nbytes` from `start`."""
        if isinstance(self.path, RemotePath):
            return self.path.store.read(self.path.key, start, nbytes)
        with self.path.open("rb") as file:
            file.seek(start)
            content = file.read(nbytes)
        self._check(len(content), nbytes)
        return content

    def copy_into(self, room: memoryview, start: int) -> None:
        """Fill `room` with what lies from `start` on."""
        if isinstance(self.path, RemotePath):
            for first in range(0, len(room), _PIECE):
                piece = room[first : first + _PIECE]
                piece[:] = self.at(start + first, len(piece))
            return
        with self.path.open("rb", buffering=0) as file:
            file.seek(start)
            rest = room
            while rest and (count := file.readinto(rest[:_PIECE])):
                rest = rest[count:]
        self._check(len(room) - len(rest), len(room))

    def _check(self, count: int, nbytes: int) -> None:
        if count != nbytes:
            raise ForeignFileError(
                f"{self.path}: {count} bytes are there where {nbytes} should be",
                hint="it was cut short while it was read: import it when nobody writes to it",
            )


class RangeSource:
    """A Source over bytes that lie in a file as an archive has them."""

    def __init__(self, octets: FileBytes, start: int, nbytes: int) -> None:
        self._octets, self._start, self.nbytes = octets, start, nbytes

    def copy_into(self, room: memoryview) -> None:
        self._octets.copy_into(room, self._start)


class ArraySource:
    """A Source over an array in memory."""

    def __init__(self, bits: NDArray[np.generic]) -> None:
        self._bits = np.ascontiguousarray(bits).reshape(-1).view(np.uint8)
        self.nbytes = self._bits.nbytes

    def copy_into(self, room: memoryview) -> None:
        room[:] = self._bits.data
