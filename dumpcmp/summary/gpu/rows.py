"""Packed summaries on a CUDA device, one row each, brought to the host many at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dumpcmp.nouns.record import Stored

MOST = 64  # rows of a Batch


class Batch:
    """Rows of one length that one stream fills, and that travel to pinned memory together.

    One thread fills it, by launching what makes row `num_filled` and then counting it; any
    thread may fetch. No row needs an event of its own, and none is copied by itself.
    """

    def __init__(self, length: int, stream: torch.cuda.Stream, side: torch.cuda.Stream) -> None:
        self.room = torch.empty(MOST, length, dtype=torch.float64, device=stream.device)
        self.row_nbytes = length * self.room.itemsize
        self.address = self.room.data_ptr()
        self.num_filled = 0
        self._stream = stream
        self._side = side  # on which rows leave
        self._num_arrived = 0
        self._host = memoryview(b"")
        self._lock = threading.Lock()

    def fetch(self, index: int) -> memoryview:
        """The bytes of row `index`, on the host; waits for the device."""
        with self._lock:
            if index >= self._num_arrived:
                self._bring(self.num_filled)
        return self._host[index * self.row_nbytes : (index + 1) * self.row_nbytes]

    def _bring(self, count: int) -> None:
        if not self._num_arrived:
            self._pinned = torch.empty(self.room.shape, dtype=torch.float64, pin_memory=True)
            self._host = self._pinned.numpy().data.cast("B")
        rows = slice(self._num_arrived, count)
        self._side.wait_stream(self._stream)
        with torch.cuda.stream(self._side):
            self._pinned[rows].copy_(self.room[rows], non_blocking=True)
        self._side.synchronize()
        self._num_arrived = count


class DeviceRow(NamedTuple):
    """The Summary of one CUDA tensor, as a row of a Batch; it is the Source of its own bytes."""

    stored: Stored
    batch: Batch
    number: int
    digest: str = ""  # none is taken on a device

    @property
    def numbers(self) -> Tensor:
        """The row, on the device."""
        return self.batch.room[self.number]

    @property
    def source(self) -> DeviceRow:
        """What brings the row to the host."""
        return self

    @property
    def nbytes(self) -> int:
        return self.batch.row_nbytes

    def copy_into(self, room: memoryview) -> Callable[[], None]:
        """Give the function that waits for the row and fills `room`."""
        return partial(self._settle, room)

    def _settle(self, room: memoryview) -> None:
        room[:] = self.batch.fetch(self.number)


class Room:
    """What one thread's kernels on one stream share: scratch memory, and a Batch to fill."""

    def __init__(self, groups: int, length: int, device: torch.device) -> None:
        self._device = device
        self._length = length
        self._sums = torch.empty(groups, 16384, dtype=torch.float64, device=device)
        self._totals = torch.empty(groups * 8, 8, dtype=torch.float64, device=device)
        self.scratch = (self._sums.data_ptr(), self._totals.data_ptr())
        self._side: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._batch: Batch | None = None

    @property
    def batch(self) -> Batch:
        """The Batch that the next row belongs to."""
        batch = self._batch
        if batch is None or batch.num_filled == MOST:
            stream = torch.cuda.current_stream(self._device)
            batch = self._batch = Batch(self._length, stream, self._side)
        return batch
