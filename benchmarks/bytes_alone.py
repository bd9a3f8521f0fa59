"""What bytes cost that are copied, digested and written, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

RING_NBYTES = 2 << 20  # that bytes are copied to, as those of a capture are
PIECE_NBYTES = 32 << 10  # that are copied and digested together


Give = Callable[[NDArray[Any]], None]


@contextmanager
def handing_over(descriptor: int) -> Iterator[Give]:
    """What copies and digests an array, by pieces, and has a thread write it to a file."""
    room, awaited = np.zeros(RING_NBYTES, np.uint8), SimpleQueue[Any]()
    at = 0

    def write() -> None:
        while (content := awaited.get()) is not None:
            os.write(descriptor, content)

    def give(array: NDArray[Any]) -> None:
        nonlocal at
        source, digest = array.reshape(-1).view(np.uint8), xxh3_128()
        for start in range(0, len(source), PIECE_NBYTES):
            piece = source[start : start + PIECE_NBYTES]
            at = at if at + len(piece) <= RING_NBYTES else 0
            copy = room[at : at + len(piece)]
            copy[:] = piece
            digest.update(copy.data)
            at += len(piece)
        digest.hexdigest()
        awaited.put(source.data)

    thread = Thread(target=write)
    thread.start()
    try:
        yield give
    finally:
        awaited.put(None)
        thread.join()


def hand_over(arrays: Iterable[NDArray[Any]], descriptor: int) -> None:
    """Do so with each of `arrays`."""
    with handing_over(descriptor) as give:
        for array in arrays:
            give(array)
