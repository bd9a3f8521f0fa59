"""The ring's memory as GPUs know it: registered, so that they can write there directly."""

from __future__ import annotations

import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, of Linux 5.14 and later
_TOUCHED = 64 << 20  # bytes that one thread has the system make ready at once
_MOST_THREADS = 16
_PORTABLE = 1  # cudaHostRegisterPortable: for all devices of the process
_SUCCESS = 0


def address_of(room: memoryview) -> int:
    """Where `room`, which is not empty, begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(room))


class Pages:
    """Memory that is lent by the archive. It is registered when a device is about to write there.

    Pages that are registered stay in memory, and a device reaches them without a copy between.
    """

    def __init__(self) -> None:
        self.num_begun = self.num_arrived = 0  # copies into memory of the host
        self._devices: set[torch.device] = set()
        self.problem = ""  # why a device cannot write here
        self._lent: list[tuple[int, int]] = []  # where each range begins and ends, not registered
        self._known: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    @property
    def is_writing(self) -> bool:
        """Whether any device has begun to write."""
        return bool(self._devices)

    def expect(self, device: torch.device) -> None:
        """Be ready for what comes from `device`."""
        self._devices.add(device)

    def lend(self, address: int, nbytes: int) -> None:
        """Take this memory, which nobody writes to yet."""
        with self._lock:
            self._lent.append((address, address + nbytes))

    def ends(self, address: int, nbytes: int) -> list[int]:
        """Where a copy of `nbytes` to `address` ends, and before that, where it must be split.

        It must not cross from one registered range into another. Empty where it cannot be made.
        """
        if self._lent and not self.problem:
            self._register()
        last = address + nbytes
        found = [end for start, end in self._known if start < last and address < end]
        first = min((start for start, end in self._known if address < end), default=last)
        if not found or found[-1] < last or first > address:
            return []
        return [*(end - address for end in found[:-1]), nbytes]

    def give_back(self) -> None:
        """Wait for what is still being written, and let the memory go."""
        with self._lock:
            known, self._known = self._known, []
            self._lent.clear()
        if known and self.num_arrived < self.num_begun:  # after trouble
            for device in self._devices:
                torch.cuda.synchronize(device)
        for start, _ in known:
            torch.cuda.cudart().cudaHostUnregister(start)  # type: ignore[no-untyped-call]

    def _register(self) -> None:
        with self._lock:
            while self._lent:
                start, end = self._lent.pop(0)
                _make_ready(start, end)
                runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
                code = int(runtime.cudaHostRegister(start, end - start, _PORTABLE))
                if code != _SUCCESS:
                    self.problem = f"cudaHostRegister gave error {code}"
                    return
                self._known.append((start, end))


def _make_ready(start: int, end: int) -> None:
    """Have many threads touch the pages, which the device would have one thread do, page by page.

    Where the system cannot, or has not the memory, registering them does what is left, or fails.
    """
    ranges = range(start, end, _TOUCHED)
    if len(ranges) > 1 and hasattr(os, "sched_getaffinity"):
        threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        with ThreadPoolExecutor(threads, "dumpcmp pages") as crew:
            list(crew.map(lambda at: madvise(at, min(_TOUCHED, end - at), _POPULATE_WRITE), ranges))
