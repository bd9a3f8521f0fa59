"""Locks on files by which processes know of each other: one that writes, one that compacts."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dumpcmp.nouns.errors import ArchiveError

WRITING = ".writing"  # in a rank's directory, held by the process that writes there
COMPACTING = ".compacting"  # in an archive, held by one that compacts or repairs it
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def hold(path: Path) -> int:
    """Make `path` and hold it; the descriptor that does. BlockingIOError where another does.

    The system lets go of it with the process, however that ends, and tells all processes of this
    machine alike, whatever numbers they know each other by.
    """
    descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_held(path: Path) -> bool | None:
    """Whether a process holds `path`; None where there is nothing to ask."""
    try:
        descriptor = os.open(path, (_FLAGS & ~os.O_RDWR) | os.O_RDONLY)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(descriptor)
    return False


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold the archive at `root` against others that compact or repair it."""
    path = root / COMPACTING
    try:
        descriptor = hold(path)
    except BlockingIOError:
        holder = path.read_text(errors="replace").strip() or "unknown"
        raise ArchiveError(
            f"{root} is being compacted or repaired by another process ({holder})",
            hint="wait for it, or stop it; what it has done stays",
        ) from None
    except OSError as error:
        raise ArchiveError(f"cannot compact {root}: {error.strerror}") from error
    try:
        os.pwrite(descriptor, str(os.getpid()).encode().ljust(32), 0)
        yield
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
