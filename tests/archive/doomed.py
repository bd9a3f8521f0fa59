"""A program that writes records for ever, and logs each one that is finished: to be killed.

Run as ``python -m tests.archive.doomed ARCHIVE LOG shared|file``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import cast

import numpy as np

from dumpcmp.archive.write.ring import Memory
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Record
from tests.archive.values import Dense

STEP = 60  # records
SIZES = (3_000, 20_000, 700_000)  # elements of those that come again in each step


def name_of(number: int, slot: str) -> Key:
    return Key("Model", number // STEP, f"layers.{number // 4}", 0, f"{slot}.{number % 4}")


def filling(number: int) -> float:
    """What the elements of a record are; each fifth is that of the step before."""
    return float(number if number % 5 else -1 - number % STEP)


def main(path: str, log: str, ring: Memory) -> None:
    sizes = np.random.default_rng(0)
    with (
        ArchiveWriter(path, part_nbytes=16 << 20, memory=ring) as sink,
        Path(log).open("wb", buffering=0) as finished,
    ):
        number = 0
        while True:
            count = int(10 ** sizes.uniform(0, 5.6))
            count = count if number % 5 else SIZES[number % STEP // 5 % len(SIZES)]
            bits = np.full(count, filling(number))
            first = name_of(number, "output")
            sink.put(Record(first, number, "float64", (count,), (1,)), Dense(bits))
            again = Record(
                name_of(number, "input"), number, "float64", (count,), (1,), same_as=first
            )
            sink.put(again, None)
            finished.write(f"{number} {count} {time.monotonic():.6f}\n".encode())
            number += 1


if __name__ == "__main__":
    path, log, ring = sys.argv[1:]
    main(path, log, cast(Memory, ring))
