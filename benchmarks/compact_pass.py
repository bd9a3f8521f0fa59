"""CPU time of one compaction and of one read of the same parts, in a process without torch."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dumpcmp.archive.rewrite import is_sealed, parts_of
from dumpcmp.compacting import compact, nbytes_of
from dumpcmp.summary import sketch


def spent(run: Callable[[], object]) -> float:
    """CPU seconds of this process, which other load disturbs least."""
    began = time.process_time()
    run()
    return time.process_time() - began


def read_once(path: Path, room: np.ndarray) -> None:
    """Read every byte of the parts once, from the page cache into 4 MB of memory."""
    for part in filter(is_sealed, parts_of(path)):
        with part.open("rb", buffering=0) as file:
            while file.readinto(room.data):
                pass


def rates(path: Path) -> dict[str, float]:
    """GB/s of a read and of the compaction of the archive at `path`, which is then compacted."""
    nbytes, room = nbytes_of(path), np.zeros(1 << 22, np.uint8)
    read_once(path, room)  # the first time also finds the pages
    found = {"read": spent(lambda: read_once(path, room)), "compact": spent(lambda: compact(path))}
    return {what: nbytes / seconds / 1e9 for what, seconds in found.items()}


if __name__ == "__main__":
    if sys.argv[2] == "numpy":
        sketch.absorb = None
    print(json.dumps(rates(Path(sys.argv[1]))))
