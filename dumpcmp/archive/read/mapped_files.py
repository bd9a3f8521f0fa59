"""Parts as memory. A page that the disk does not give is an error here, and does not end Python."""

from __future__ import annotations

import errno
import mmap
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.errors import ArchiveError

# Linux's MADV_POPULATE_READ, since 5.14: reads pages, and fails where touching one would be SIGBUS.
_POPULATE_READ = 22
_LOST = {errno.EFAULT, errno.EIO, getattr(errno, "EHWPOISON", errno.EIO)}


class MappedFile:
    """The bytes of a part, mapped."""

    def __init__(self, part: Path) -> None:
        try:
            with part.open("rb") as file:  # np.memmap takes six times as long over the path
                self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ArchiveError(f"cannot map {part}: {error}") from error
        self._part = part
        self._bytes = np.frombuffer(self._memory, np.uint8)

    def __len__(self) -> int:
        return len(self._bytes)

    def view(self, start: int, nbytes: int) -> NDArray[np.uint8]:
        """The `nbytes` from `start` on, which the disk has given."""
        first = start - start % mmap.PAGESIZE
        if sys.platform == "linux":
            try:
                self._memory.madvise(_POPULATE_READ, first, start + nbytes - first)
            except OSError as error:
                if error.errno in _LOST:  # others are of a Linux that does not know how
                    raise unreadable(self._part, start, nbytes, "") from error
        return self._bytes[start : start + nbytes]


def unreadable(part: Path, start: int, nbytes: int, why: str) -> ArchiveError:
    """The error of bytes that are in a part and do not come from the disk."""
    why = why or "the disk does not give them, or the file was cut short"
    return ArchiveError(
        f"cannot read {nbytes} bytes at {start} of {part}: {why}",
        hint="copy what can be read to another disk; dumpcmp audit says what is left of it",
    )
