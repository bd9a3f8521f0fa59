"""A program whose shared memory fills up while it is captured: the ring makes do with what it has.

Run as ``python -m tests.archive.crowded ARCHIVE early|late`` where /dev/shm is small; others take
all of it before the capture begins, or once it runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from dumpcmp.archive.paths import SHARED_MEMORY
from dumpcmp.archive.write.writer import ArchiveWriter
from tests.archive.values import key, put


def fill(place: Path) -> None:
    with (place / "others").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


def main(path: str, when: str) -> None:
    if when == "early":
        fill(SHARED_MEMORY)
    with ArchiveWriter(path) as sink:
        if when == "late":
            fill(SHARED_MEMORY)
        for number in range(200):
            put(sink, key(f"op{number}"), np.full(1 << (number % 18), float(number)), number)


if __name__ == "__main__":
    main(*sys.argv[1:])
