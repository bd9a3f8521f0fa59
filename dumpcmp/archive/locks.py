"""Locks on files by which processes know of each other: one that writes, one that compacts."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dumpcmp.nouns.errors import ArchiveError

WRITING = ".writing"  # in a rank's directory, held by the process that writes there
COMPACTING = ".compacting"  # in an archive, held by one that compacts or repairs it
POLL_SECONDS = 0.05
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FLOCK = struct.Struct("@hhqqi0q")  # the system's own: type, whence, start, length, process


def lock(descriptor: int) -> None:
    """Hold an open file until its last descriptor is closed. BlockingIOError where another does.

    These locks can be asked for without being taken: who asks is in nobody's way.
    """
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))


def _whole_file(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)


def hold(path: Path) -> int:
    """Make `path` and hold it; the descriptor that does. BlockingIOError where another does.

    The system lets go of it with the process, however that ends, and tells all processes of this
    machine alike, whatever numbers they know each other by. A file that whoever held it before has
    removed meanwhile holds nobody off: it is made anew.
    """
    while True:
        descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o644)
        try:
            lock(descriptor)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one at `path` still."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def is_held(path: Path) -> bool | None:
    """Whether a process holds `path`; None where there is nothing to ask."""
    try:
        descriptor = os.open(path, (_FLAGS & ~os.O_RDWR) | os.O_RDONLY)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        told = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
        return bool(_FLOCK.unpack(told)[0] != fcntl.F_UNLCK)
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(descriptor)


def _holder(path: Path) -> str:
    """Who holds `path`, by its number; it may have let go since."""
    try:
        return path.read_text(errors="replace").strip() or "unknown"
    except FileNotFoundError:
        return "which has just ended"


def _hold_within(path: Path, patience: float) -> int:
    """Hold `path`, for which others are waited so many seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return hold(path)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(POLL_SECONDS)


@contextmanager
def alone(root: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold the archive at `root` against others that compact or repair it.

    Who has it is waited for so many seconds.
    """
    path = root / COMPACTING
    try:
        descriptor = _hold_within(path, patience)
    except BlockingIOError:
        raise ArchiveError(
            f"{root} is being compacted or repaired by another process ({_holder(path)})",
            hint="wait for it, or stop it; what it has done stays",
        ) from None
    except OSError as error:
        raise ArchiveError(
            f"cannot write to {root}: {error.strerror}", hint="copy it to where you may write"
        ) from error
    try:
        os.pwrite(descriptor, str(os.getpid()).encode().ljust(32), 0)
        yield
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
