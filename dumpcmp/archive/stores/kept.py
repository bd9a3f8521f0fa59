"""What is kept on disk of what was read from stores, so that it need not be asked for again.

Of each object there is a file with holes, and a list of the ranges that are none: place, length and
digest. A range is listed after it is written, and held against its digest when it is read. An
object that changes gets another name, and one of which a store does not say when it changes is not
kept at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from struct import Struct

from xxhash import xxh3_128_digest, xxh3_128_hexdigest

from dumpcmp.archive.stores.store import ObjectTold
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.options import parse_nbytes

CACHE = "DUMPCMP_CACHE"  # the variable: DIR or DIR:SIZE; processes that are started inherit it
USUAL_NBYTES = 10 << 30
_ENTRY = Struct("<QQ16s")  # place, length and digest
_SIZED = re.compile(r"(?P<directory>.+):(?P<size>[0-9.]+[KMGTkmgt]?i?B?)")
_SUFFIXES = (".bytes", ".list")


class DiskCache:
    """A directory of such files, with a bound on what they take."""

    def __init__(self, directory: Path, most: int) -> None:
        self.directory, self.most = directory, most
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArchiveError(
                f"cannot keep what is read in {directory}: {error.strerror}",
                hint="give --cache another directory",
            ) from error
        self._since = most  # bytes that came since the files were counted; now is the first time

    def admits(self, nbytes: int) -> bool:
        """Whether there is room for `nbytes` more; files used longest ago make it."""
        if nbytes > self.most // 2:
            return False
        self._since += nbytes
        if self._since > self.most // 16:
            self._since = 0
            self._make_room(self.most - self.most // 8)
        return True

    def _make_room(self, most: int) -> None:
        used: dict[Path, tuple[float, int]] = dict(self._used())
        total = sum(nbytes for _, nbytes in used.values())
        for stem in sorted(used, key=lambda each: used[each][0]):
            if total <= most:
                return
            total -= used[stem][1]
            for suffix in reversed(_SUFFIXES):
                with suppress(FileNotFoundError):
                    stem.with_suffix(suffix).unlink()

    def _used(self) -> Iterator[tuple[Path, tuple[float, int]]]:
        """Each kept object: when it was used last, and what its files take."""
        for path in self.directory.glob(f"*{_SUFFIXES[1]}"):
            with suppress(FileNotFoundError):
                files = [path.with_suffix(suffix).stat() for suffix in _SUFFIXES]
                yield (
                    path.with_suffix(""),
                    (files[1].st_mtime, sum(f.st_blocks for f in files) * 512),
                )


class KeptRanges:
    """The ranges of one object that are kept. No file stays open: there may be thousands."""

    def __init__(self, cache: DiskCache, name: str) -> None:
        self._cache = cache
        self._bytes, self._list = (cache.directory / f"{name}{suffix}" for suffix in _SUFFIXES)
        self._known: dict[tuple[int, int], bytes] = {}
        self._read = 0  # bytes of the list that were read
        with suppress(FileNotFoundError):
            os.utime(self._list)  # used now: others make room first

    def __contains__(self, each: tuple[int, int]) -> bool:
        if each not in self._known:
            self._catch_up()
        return each in self._known

    def _catch_up(self) -> None:
        """Read what this process or others have listed since."""
        try:
            with self._list.open("rb") as file:
                file.seek(self._read)
                listed = file.read()
        except FileNotFoundError:
            self._known, self._read = {}, 0
            return
        whole = len(listed) // _ENTRY.size * _ENTRY.size
        for start, nbytes, digest in _ENTRY.iter_unpack(listed[:whole]):
            self._known[start, nbytes] = digest
        self._read += whole

    def get(self, start: int, nbytes: int) -> bytes | None:
        """The bytes of a range, or None where it is not kept, or not any more what it was."""
        if (start, nbytes) not in self:
            return None
        try:
            with self._bytes.open("rb") as file:
                content = os.pread(file.fileno(), nbytes, start)
        except FileNotFoundError:
            content = b""
        if len(content) == nbytes and xxh3_128_digest(content) == self._known[start, nbytes]:
            return content
        del self._known[start, nbytes]  # removed to make room, or damaged
        return None

    def put(self, start: int, content: bytes) -> None:
        """Keep a range, where there is room; a disk that cannot take it is no trouble."""
        if (start, len(content)) in self._known or not self._cache.admits(len(content)):
            return
        entry = _ENTRY.pack(start, len(content), xxh3_128_digest(content))
        with suppress(OSError):
            if _written(self._bytes, os.O_CREAT, content, start) == len(content):
                _written(self._list, os.O_CREAT | os.O_APPEND, entry)


def _written(path: Path, flags: int, content: bytes, start: int = 0) -> int:
    """How much of `content` could be written to `path`, at `start` or, with O_APPEND, the end."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o600)
    try:
        return os.pwrite(descriptor, content, start)
    finally:
        os.close(descriptor)


def parse_cache(text: str) -> tuple[Path, int]:
    """Read ``DIR`` or ``DIR:SIZE``."""
    match = _SIZED.fullmatch(text)
    if match is None:
        return Path(text).absolute(), USUAL_NBYTES
    return Path(match["directory"]).absolute(), parse_nbytes(match["size"])


@lru_cache(maxsize=4)
def _cache_at(text: str) -> DiskCache:
    return DiskCache(*parse_cache(text))


def kept_of(scheme: str, key: str, told: ObjectTold) -> KeptRanges | None:
    """What is kept of an object; None where nothing is: no cache, or no way to see it change."""
    text = os.environ.get(CACHE)
    if not text or not told.identity:
        return None
    name = xxh3_128_hexdigest(f"{scheme}\0{key}\0{told.nbytes}\0{told.identity}".encode())
    return KeptRanges(_cache_at(text), name)
