"""A device without a GPU: it writes to memory that it was lent, by address, late and on its own.

Run as ``python -m tests.archive.device ARCHIVE LANES`` it puts values, waits until they have
arrived in the ring while the disk takes none of them, and is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.write import plans, staging
from dumpcmp.archive.write.part import Octets, Part
from dumpcmp.archive.write.writer import ArchiveWriter
from tests.archive.values import key, record

NUM_VALUES = 6


class Device:
    """Copies in order, on a thread, each after a while; remembers what memory it may write to."""

    def __init__(self, seconds: float = 0.001) -> None:
        self.is_writing = False
        self.lent: list[tuple[int, int]] = []
        self.seconds = seconds
        self.num_copied = 0
        self._copies: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def lend(self, address: int, nbytes: int) -> None:
        self.lent.append((address, address + nbytes))

    def give_back(self) -> None:
        self.lent.clear()

    def copy(self, bits: NDArray[np.uint8], address: int, arrived: threading.Event) -> None:
        assert self.lent[0][0] <= address and address + bits.nbytes <= self.lent[-1][1]

        def job() -> None:
            time.sleep(self.seconds)
            ctypes.memmove(address, bits.ctypes.data, bits.nbytes)
            arrived.set()

        self._copies.put(job)

    def _work(self) -> None:
        while True:
            self._copies.get()()
            self.num_copied += 1


class Away:
    """A Source on a Device."""

    def __init__(self, device: Device, bits: NDArray[np.generic]) -> None:
        self.bits = bits.reshape(-1).view(np.uint8)
        self.device = device
        device.is_writing = True

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes

    def copy_into(self, room: memoryview) -> Callable[[], None] | None:
        if not self.nbytes:
            return None
        arrived = threading.Event()
        self.device.copy(self.bits, ctypes.addressof(ctypes.c_char.from_buffer(room)), arrived)
        return Arriving(arrived)


class Arriving:
    is_prompt = True

    def __init__(self, arrived: threading.Event) -> None:
        self.arrived = arrived

    def __call__(self) -> None:
        assert self.arrived.wait(10)


def stuck(part: Part, content: Octets, address: int) -> None:
    if len(content) > 1 << 20:
        time.sleep(60)
    os.pwrite(part.descriptor, content, address)


def in_lanes(patch: Callable[[object, str, object], None], num_lanes: int) -> None:
    """Have large values go into so many parts in turn, however few processors there are."""
    patch(plans, "_num_lanes", lambda _: num_lanes)
    patch(staging, "WIDE_NBYTES", 500_000)


def main(path: str, num_lanes: str) -> None:
    in_lanes(setattr, int(num_lanes))
    Part.write = stuck  # type: ignore[method-assign,assignment]
    sink, device = ArchiveWriter(path), Device()
    sink.lend_to(device)
    for number in range(NUM_VALUES):
        bits = np.full(1 << 20, float(number))
        sink.put(record(key(f"op{number}"), bits, order=number), Away(device, bits))
    while device.num_copied < NUM_VALUES:
        time.sleep(0.01)
    time.sleep(0.2)  # for whoever says in the ring that they are there
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
