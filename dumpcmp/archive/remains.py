"""What a killed writer leaves behind: the run's own account of it, and its ring."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from struct import Struct
from typing import Any

from dumpcmp.archive.schema import RUN_FILE

LARGEST_RUN_FILE = 64 << 20
SHARED_MEMORY = Path("/dev/shm")
RING_PREFIX = "dumpcmp-"  # of a ring in shared memory
RING_FILE = ".ring"  # of one in the rank's directory
RING_MAGIC = b"dumpcmp ring 1\0\0"
HEADER_NBYTES = 4096
RING_HEADER = Struct("<16sQQQ")  # magic, capacity, place and sequence of the oldest record
QUIET_SECONDS = 3600


def read_run(directory: Path) -> dict[str, Any]:
    """run.json of a rank directory, or an empty dictionary where it cannot be read."""
    path = directory / RUN_FILE
    try:
        if path.stat().st_size > LARGEST_RUN_FILE:
            return {}
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def writer_lives(facts: dict[str, Any], directory: Path | None = None) -> bool:
    """Whether the process that writes this run still runs, as far as this machine can tell.

    Another host cannot be asked: its writer counts as alive until nothing in `directory` has
    changed for an hour.
    """
    writer = facts.get("writer")
    if not isinstance(writer, dict):
        return False
    if writer.get("host") != socket.gethostname():
        return directory is None or _changed_lately(directory)
    pid, began = writer.get("pid"), writer.get("began")
    return isinstance(pid, int) and pid > 0 and process_start(pid) == began


def _changed_lately(directory: Path) -> bool:
    changes = [path.stat().st_mtime for path in directory.rglob("*") if path.is_file()]
    return time.time() - max(changes, default=0.0) < QUIET_SECONDS


def process_start(pid: int) -> str:
    """When process `pid` began, in the system's ticks: tells it from a later one of its number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _alive_without_proc(pid)
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def _alive_without_proc(pid: int) -> str:
    if Path("/proc/self/stat").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"


def ring_left_by(directory: Path) -> Path | None:
    """The ring of a writer that is no more, where it can still be found."""
    facts = read_run(directory)
    writer = facts.get("writer")
    if not isinstance(writer, dict) or writer_lives(facts, directory):
        return None
    name = writer.get("ring")
    if not isinstance(name, str) or "/" in name:
        return None
    if name != RING_FILE and not name.startswith(RING_PREFIX):
        return None
    path = directory / name if name == RING_FILE else SHARED_MEMORY / name
    return path if path.is_file() and not path.is_symlink() else None


def read_header(first_page: bytes, nbytes: int) -> tuple[int, int, int]:
    """Capacity, place and sequence of the oldest record of a ring file of `nbytes`."""
    if len(first_page) < RING_HEADER.size:
        return 0, 0, 0
    magic, capacity, place, sequence = RING_HEADER.unpack_from(first_page)
    if magic != RING_MAGIC or capacity + HEADER_NBYTES != nbytes:
        return 0, 0, 0
    return capacity, place, sequence
