"""A program that writes a step at a time, for so many seconds, and logs each one that is finished.

Run as ``python -m tests.archive.steady ARCHIVE LOG SECONDS``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key
from tests.archive.values import key, put

SIZES = (1, 3, 40, 300, 300, 3_000, 3_000, 20_000)  # elements of the values of a step
PAUSE = 0.2  # seconds between two steps


def name_of(step: int, number: int) -> Key:
    return key(f"layers.{number}", step=step)


def numbers_of(step: int, number: int) -> NDArray[np.float64]:
    """What is written: no two values are the same."""
    return np.full(SIZES[number], float(step * len(SIZES) + number))


def main(path: str, log: str, seconds: float) -> None:
    end, step = time.monotonic() + seconds, 0
    with ArchiveWriter(Path(path)) as sink, Path(log).open("wb", buffering=0) as finished:
        while time.monotonic() < end:
            for number in range(len(SIZES)):
                put(sink, name_of(step, number), numbers_of(step, number), number)
            sink.finish_step("Model", step)
            finished.write(f"{step} {time.monotonic():.6f}\n".encode())
            step += 1
            time.sleep(PAUSE)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
