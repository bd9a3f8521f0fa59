"""What summaries keep on a device: tables of the sketch, scratch memory, and packed rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dumpcmp.nouns.record import Stored
from dumpcmp.summary.sketch import BLOCK, RUN, hash_of

MOST = 64  # rows of a Batch
SCRATCH_NBYTES = 32 << 20  # of sums that are made into rows together, less where rows are many
_BLOCK_SUMS = 16384  # of each group of programs
_TOTALS = 64  # of each group; before all of them stand 8 numbers for the row itself

# Has a stream make rows of sums: where sums, totals and rows begin, and how many there are.
Finish = Callable[[int, int, int, int, int], None]


class Batch:
    """Rows of one length that one stream fills, and that travel to pinned memory together.

    One thread fills it, by launching what sums up row `num_filled` and then counting it; any
    thread may fetch. Sums are made into rows many at a time: by the stream itself once the Batch
    is full, or on their way to the host. No row needs an event of its own.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._rows = torch.empty(
            room.num_rows, room.length, dtype=torch.float64, device=room.stream.device
        )
        self.row_nbytes = room.length * self._rows.itemsize
        self._address = self._rows.data_ptr()
        self.num_filled = 0
        self._num_finished = self._num_arrived = 0
        self._host = memoryview(b"")
        self._finishing = threading.Lock()  # held for a launch
        self._lock = threading.Lock()  # held while the device is waited for

    def fetch(self, index: int) -> memoryview:
        """The bytes of row `index`, on the host; waits for the device."""
        with self._lock:
            if index >= self._num_arrived:
                self._bring(self.num_filled)
        return self._host[index * self.row_nbytes : (index + 1) * self.row_nbytes]

    def row(self, index: int) -> Tensor:
        """Row `index` on the device, for what the current stream does next."""
        room = self._room
        self.finish()
        here = torch.cuda.current_stream(room.stream.device)
        here.wait_stream(room.stream)
        here.wait_stream(room.side)
        return self._rows[index]

    def finish(self) -> None:
        """Have the stream that fills it make rows of all sums that are there."""
        with self._finishing:
            self._finish(self.num_filled, self._room.stream)

    def _finish(self, count: int, stream: torch.cuda.Stream) -> None:
        first, room = self._num_finished, self._room
        if count > first:
            with torch.cuda.stream(stream):
                row = self._address + first * self.row_nbytes
                room.finish(stream.cuda_stream, *room.scratch(first), row, count - first)
            self._num_finished = count

    def _bring(self, count: int) -> None:
        if not self._num_arrived:
            self._pinned = torch.empty(self._rows.shape, dtype=torch.float64, pin_memory=True)
            self._host = self._pinned.numpy().data.cast("B")
        rows, side = slice(self._num_arrived, count), self._room.side
        with self._finishing:
            side.wait_stream(self._room.stream)
            self._finish(count, side)
        with torch.cuda.stream(side):
            self._pinned[rows].copy_(self._rows[rows], non_blocking=True)
        side.synchronize()
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
        return self.batch.row(self.number)

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
    """What one thread's kernels on one stream share: memory for sums, and a Batch to fill."""

    def __init__(self, groups: int, length: int, device: torch.device, finish: Finish) -> None:
        per_row = groups * (_BLOCK_SUMS + _TOTALS) + 8
        self.num_rows = max(1, min(MOST, SCRATCH_NBYTES // (8 * per_row)))
        self.length = length
        self.finish = finish
        self.stream: torch.cuda.Stream = torch.cuda.current_stream(device)
        self.side: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._sums = torch.empty(
            self.num_rows, groups * _BLOCK_SUMS, dtype=torch.float64, device=device
        )
        self._totals = torch.empty(
            self.num_rows, groups * _TOTALS + 8, dtype=torch.float64, device=device
        )
        self._places = [
            (sums.data_ptr(), totals.data_ptr())
            for sums, totals in zip(self._sums, self._totals, strict=True)
        ]
        self._batch: Batch | None = None

    def scratch(self, number: int) -> tuple[int, int]:
        """Where the sums and totals of row `number` of a Batch go."""
        return self._places[number]

    @property
    def batch(self) -> Batch:
        """The Batch that the next row belongs to."""
        batch = self._batch
        if batch is None or batch.num_filled == self.num_rows:
            if batch is not None:
                batch.finish()
                self.stream.wait_stream(self.side)  # which may still read sums of the last one
            batch = self._batch = Batch(self)
        return batch


@dataclass(eq=False)
class Tables:
    """The tables of one seed on one device."""

    device: torch.device
    seed: int
    rooms: dict[tuple[int, ...], Room] = field(default_factory=dict, repr=False)  # of launches
    _turns: Tensor | None = field(default=None, repr=False)
    _packed_turns: Tensor | None = field(default=None, repr=False)
    _folds: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _places: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def turns(self, end: int) -> Tensor:
        """Rotation, offset and sign of blocks 0 to at least `end`, one int32 row each."""
        if self._turns is None or self._turns.shape[1] < end:
            count = max(4096, 1 << (end - 1).bit_length())
            columns = hash_of(self.seed).turns(np.arange(count, dtype=np.int64))
            self._turns = torch.from_numpy(np.stack(columns).astype(np.int32)).to(self.device)
        return self._turns

    def packed_turns(self, end: int) -> Tensor:
        """The same in one int32: rotation, offset from bit 8, and bit 16 for a negative sign."""
        turns = self.turns(end)
        if self._packed_turns is None or self._packed_turns.shape[0] != turns.shape[1]:
            rotation, offset, common = turns
            self._packed_turns = rotation + (offset << 8) + ((common < 0).to(torch.int32) << 16)
        return self._packed_turns

    @cached_property
    def signs(self) -> Tensor:
        """+1 and -1 for each bit of the 512 sign words."""
        return torch.from_numpy(hash_of(self.seed).signs).to(self.device).view(512, RUN)

    @cached_property
    def half_words(self) -> Tensor:
        """The sign words as pairs of int32, the low half first."""
        return torch.from_numpy(hash_of(self.seed).words.view(np.int32)).to(self.device)

    def places(self, size: int) -> Tensor:
        """What goes to each eight of `size` buckets of a turned block, and -1 behind it."""
        if size not in self._places:
            found = np.sort(_sources(self.seed, size), 1) if size else np.full((8, 1), BLOCK)
            width = 1 << max(0, int((found < BLOCK).sum(1).max(initial=1)) - 1).bit_length()
            found = np.where(found < BLOCK, found, -1)[:, :width].astype(np.int32)
            table = np.ascontiguousarray(found.reshape(-1, 8, width).transpose(0, 2, 1))
            self._places[size] = torch.from_numpy(table).to(self.device)
        return self._places[size]

    def fold(self, turned: Tensor, size: int) -> Tensor:
        """The `size` buckets that the sums of turned blocks add up to, in a fixed order."""
        if size not in self._folds:
            self._folds[size] = torch.from_numpy(_sources(self.seed, size)).to(self.device)
        padded = torch.nn.functional.pad(turned, (0, 1))
        return padded[self._folds[size]].sum(1)


def _sources(seed: int, size: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """For each bucket and each run of a block: which element goes there, or BLOCK for none."""
    lane = (np.arange(size)[:, None] - hash_of(seed).bases[None, :]) & (size - 1)
    return np.where(lane < RUN, lane + RUN * np.arange(256), BLOCK)
