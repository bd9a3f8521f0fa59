"""What bytes cost that are copied, digested and written, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterable
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

RING_NBYTES = 2 << 20  # that bytes are copied to, as those of a capture are
PIECE_NBYTES = 32 << 10  # that are copied and digested together


def hand_over(arrays: Iterable[NDArray[Any]], descriptor: int) -> None:
    """Copy and digest each array, by pieces, and have a thread write it to a file."""
    room, awaited = np.zeros(RING_NBYTES, np.uint8), SimpleQueue[Any]()

    def write() -> None:
        while (content := awaited.get()) is not None:
            os.write(descriptor, content)

    thread, at = Thread(target=write), 0
    thread.start()
    for array in arrays:
        source, digest = array.view(np.uint8).reshape(-1), xxh3_128()
        for start in range(0, len(source), PIECE_NBYTES):
            piece = source[start : start + PIECE_NBYTES]
            at = at if at + len(piece) <= RING_NBYTES else 0
            copy = room[at : at + len(piece)]
            copy[:] = piece
            digest.update(copy.data)
            at += len(piece)
        digest.hexdigest()
        awaited.put(source.data)
    awaited.put(None)
    thread.join()
