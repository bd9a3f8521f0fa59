"""A part in a store, read by ranges: its head and its tail first, which tell where the index is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.read.partfile import LARGEST_READ, PartFile
from dumpcmp.archive.stores.ranges import Range, ranges_of
from dumpcmp.archive.stores.urls import RemotePath
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.record import Location

_HEAD = 2048  # bytes with the superblock and the first record
_TAIL_SHARE = 128  # of a part, its tail: the root group, and where values are large the index
_LEAST_TAIL, _MOST_TAIL = 4096, 1 << 20
_LEAST_READ = 4096


class RemotePart(PartFile):
    """A part opened for reading in a store: bytes by address, in windows that came."""

    def __init__(self, path: RemotePath) -> None:
        self.path = path
        try:
            self._ranges = ranges_of(path.store, path.key)
        except OSError as error:
            raise ArchiveError(f"cannot open {path}: {error.strerror}") from error
        self.nbytes = self._ranges.nbytes
        self._windows: list[tuple[int, memoryview]] = []
        wanted = _ends(self.nbytes)
        self._ranges.expect(wanted)
        for start, nbytes in wanted:
            self._windows.append((start, self._ranges.read(start, nbytes)))

    def __exit__(self, *_: object) -> None:
        self._windows.clear()

    def read(self, place: int, nbytes: int) -> bytes:
        """Exactly `nbytes` at `place`."""
        if nbytes > LARGEST_READ or place + nbytes > self.nbytes:
            self.fail(place, f"{nbytes} bytes are said to be here, but the file ends before")
        if (found := self._seen(place, nbytes)) is None:
            end = min(self.nbytes, place + max(nbytes, _LEAST_READ))
            self._windows[2:] = [(place, self._ranges.read(place, end - place))]
            found = self._seen(place, nbytes)
        assert found is not None
        return found

    def _seen(self, place: int, nbytes: int) -> bytes | None:
        for start, window in self._windows:
            if start <= place and place + nbytes <= start + len(window):
                return bytes(window[place - start : place - start + nbytes])
        return None

    def need(self, start: int, end: int) -> None:
        """Have all bytes from `start` to `end` at hand, which are about to be read."""
        known, tail = self._windows[1] if len(self._windows) == 2 else (0, memoryview(b""))
        if start < known and end <= self.nbytes and end - start <= LARGEST_READ:
            more = self._ranges.read(start, known - start)
            self._windows[1] = (start, memoryview(bytes(more) + bytes(tail)))

    def _grown(self, end: int) -> int:  # noqa: ARG002
        return self.nbytes


def _ends(size: int) -> list[Range]:
    """The head and the tail of a part, or all of a small one."""
    tail = min(_MOST_TAIL, max(_LEAST_TAIL, size // _TAIL_SHARE))
    if size <= _HEAD + tail:
        return [(0, size)]
    return [(0, _HEAD), (size - tail, tail)]


def opened(path: Path) -> PartFile:
    """The part at `path`, here or in a store."""
    return RemotePart(path) if isinstance(path, RemotePath) else PartFile(path)


def from_store(part: RemotePath, location: Location) -> NDArray[np.uint8]:
    """The bytes of a value that lies in a store: one range."""
    ranges = ranges_of(part.store, part.key)
    if location.offset + location.nbytes > ranges.nbytes:
        raise beyond(location)
    return np.frombuffer(ranges.read(location.offset, location.nbytes), np.uint8)


def beyond(location: Location) -> ArchiveError:
    """The error of a value that is said to lie behind the end of its part."""
    return ArchiveError(
        f"{location.part} is damaged at byte {location.offset}: {location.nbytes} bytes "
        "are said to be here, but the file ends before",
        hint="dumpcmp audit says what is left of the part",
    )


def expect(locations: Iterable[Location | None]) -> None:
    """Say that values at these places will be read: of each part, neighbours then come together."""
    wanted: dict[Path, list[Range]] = {}
    for location in locations:
        if location is not None and not location.dataset:
            wanted.setdefault(location.part, []).append((location.offset, location.nbytes))
    for part, ranges in wanted.items():
        if isinstance(part, RemotePath):
            ranges_of(part.store, part.key).expect(ranges)
