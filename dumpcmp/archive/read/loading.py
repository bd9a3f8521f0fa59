"""Elements of what an archive holds: mapped from files, or read from stores, and checked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_hexdigest

from dumpcmp.archive.read.contents import Contents
from dumpcmp.archive.read.mapped_files import MappedFile
from dumpcmp.archive.read.remote import beyond, expect, from_store
from dumpcmp.archive.schema import MAX_RANK, NO_ROW
from dumpcmp.archive.stores.urls import RemotePath
from dumpcmp.archive.stores.urls import place as place_of
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.record import Kept, Location, Record
from dumpcmp.nouns.value import DTYPES, Value

SMALLEST_MAPPED = 1 << 16  # bytes of a tensor that is worth a mapping of its own
# Parts that are mapped at once: each keeps a file open.
MOST_MAPPED = min(8192, max(64, getrlimit(RLIMIT_NOFILE)[0] // 4))
_MOST_SOUND = 1 << 18


class Loader:
    """Gives the elements of Records of the archive at `path`."""

    checks_digests = False  # whether `load` holds what it reads against its digest

    def __init__(self, path: str | Path) -> None:
        self.path = place_of(path)
        self._mapped: dict[Path, MappedFile] = {}
        self._sound: set[tuple[Path, int, str]] = set()  # values whose digest was found right
        self._files: dict[Path, int] = {}  # part -> which file it was when its index was read

    def let_go(self) -> None:
        """Let go of what was mapped: whoever asks again maps it again."""
        self._mapped.clear()
        self._sound.clear()

    def load(self, record: Record) -> Value:
        """The elements of `record`, mapped from the file: nothing is read until it is used.

        Of a summarised value these are the elements of what stands for it (`record.stored`).
        """
        if record.kept is Kept.NOTHING or record.location is None:
            raise ArchiveError(f"{record.key} has no elements in the archive: {record.problem}")
        stored = record.stored
        dtype = DTYPES.get(stored.dtype if stored else record.dtype)
        shape = stored.shape if stored else record.shape
        if dtype is None or len(shape) > MAX_RANK:
            raise ArchiveError(f"{record.location.part}: {record.key} has an unknown type or shape")
        nbytes = math.prod(shape) * dtype.nbytes
        if nbytes != record.location.nbytes:
            raise ArchiveError(
                f"{record.location.part}: {record.key} has shape {list(shape)} of {dtype}, which "
                f"needs {nbytes} bytes, but {record.location.nbytes} are stored",
                hint="dumpcmp audit says what is left of the part",
            )
        if record.location.dataset:
            from dumpcmp.archive.read.walk import read_dataset

            value = Value(dtype, read_dataset(record.location, dtype, shape))
        else:
            value = Value(dtype, self._bytes(record.location).view(dtype.storage).reshape(shape))
        if self.checks_digests or isinstance(record.location.part, RemotePath):
            self._check_digest(record, record.location, value)
        return value

    def _check_digest(self, record: Record, location: Location, value: Value) -> None:
        """Raise where the bytes are not those that were recorded; each value is looked at once."""
        place = (location.part, location.offset, location.dataset)
        if not record.digest or place in self._sound:
            return
        dense = np.ascontiguousarray(value.bits).reshape(-1).view(np.uint8)
        if xxh3_128_hexdigest(dense.data) != record.digest:
            raise ArchiveError(
                f"{location.part}: {record.key} is damaged: its {location.nbytes} bytes at "
                f"{location.offset} have another digest than was recorded",
                hint="copy the archive again, or dump again; dumpcmp audit finds all such values",
            )
        if len(self._sound) >= _MOST_SOUND:
            self._sound.clear()  # they are looked at again, should they be asked for
        self._sound.add(place)

    def expect(self, records: Iterable[Record]) -> None:
        """Say that these will be loaded: from a store, neighbours then come together."""
        if isinstance(self.path, RemotePath):
            expect(record.location for record in records)

    def load_own(self, record: Record) -> Value:
        """The elements of `record` in memory that may be written to, and never reaches the file.

        Large ones are mapped, copy-on-write; small ones are copied, which is faster.
        """
        value, location = self.load(record), record.location
        is_remote = location is not None and isinstance(location.part, RemotePath)
        if location is None or location.dataset or is_remote or value.nbytes < SMALLEST_MAPPED:
            return Value(value.dtype, np.array(value.bits))
        bits = np.memmap(location.part, value.bits.dtype, "c", location.offset, value.shape)
        self._check_file(location.part)
        return Value(value.dtype, bits.view(np.ndarray))

    def _bytes(self, location: Location) -> NDArray[np.uint8]:
        if not location.nbytes:
            return np.empty(0, np.uint8)
        if isinstance(location.part, RemotePath):
            return from_store(location.part, location)
        whole = self._mapped.get(location.part)
        if whole is None or location.offset + location.nbytes > len(whole):
            whole = self._map(location.part)
        if location.offset + location.nbytes > len(whole):
            raise beyond(location)
        return whole.view(location.offset, location.nbytes)

    def _map(self, part: Path) -> MappedFile:
        if len(self._mapped) >= MOST_MAPPED:
            for oldest in list(self._mapped)[: len(self._mapped) - MOST_MAPPED + 1]:
                self._mapped.pop(oldest, None)  # another thread may have been faster
        mapped = MappedFile(part)
        self._check_file(part)
        self._mapped[part] = mapped
        return mapped

    def _check_file(self, part: Path) -> None:
        """Raise where `part` is not the file any more whose index was read."""
        if part in self._files and part.stat().st_ino != self._files[part]:
            raise ArchiveError(
                f"{part} was sealed or compacted while it was being read",
                hint="run the command again",
            )

    def stored_in(self, contents: Contents) -> Iterator[Value]:
        """The values of a part that have bytes of their own, held against their digests.

        The part is all that its step has, and none of it needs HDF5 to be read.
        """
        columns = (
            contents.rows[n].tolist() for n in ("form", "same", "offset", "nbytes", "digest")
        )
        for row, (form, same, offset, nbytes, digest) in enumerate(zip(*columns, strict=True)):
            if same == NO_ROW:
                dtype, shape = DTYPES[contents.forms[form].dtype], contents.forms[form].shape
                bits = self._bytes(contents.location(row, offset, nbytes))
                if (
                    nbytes != math.prod(shape) * dtype.nbytes
                    or xxh3_128_hexdigest(bits.data).encode() != digest
                ):
                    raise ArchiveError(f"{contents.path}: row {row} is damaged")
                yield Value(dtype, bits.view(dtype.storage).reshape(shape))
