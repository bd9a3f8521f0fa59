"""What summaries keep on a device: tables of the sketch, scratch memory, and packed rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from dumpcmp.handlers import HOLD
from dumpcmp.nouns.built import built
from dumpcmp.nouns.record import Stored
from dumpcmp.summary.checksums import line_factors, page_factors
from dumpcmp.summary.sketch import BLOCK, RUN, hash_of

MOST = 64  # rows of a Batch
WORTHWHILE = 16  # rows that are brought at once; for fewer it waits, lest each comes by itself
PATIENCE_SECONDS = 0.003
MOST_PARTIALS = 512  # programs that add up the pages of a checksum
SCRATCH_NBYTES = 32 << 20  # for sums of tensors that are not rows yet

_core: Any = built("dumpcmp.summary.gpu._rows")


class Slate:
    """How far the rows of a Batch are."""

    __slots__ = (
        "address", "host", "most", "num_arrived", "num_filled", "num_finished", "row_nbytes",
        "stream",
    )  # fmt: skip

    address: int  # of its first row
    host: int  # the same, where rows arrive
    stream: int  # whose kernels make them
    row_nbytes: int
    num_filled: int  # rows whose sums are under way
    num_finished: int  # and that were made of them
    num_arrived: int  # on the host
    most: int


class Workbench:
    """Where sums lie before they are rows."""

    __slots__ = (
        "finishes", "is_busy", "num_places", "partials", "partials_nbytes", "slate", "sums",
        "sums_nbytes", "totals", "totals_nbytes",
    )  # fmt: skip

    sums: int
    sums_nbytes: int  # of one row's
    totals: int
    totals_nbytes: int
    partials: int  # of checksums
    partials_nbytes: int
    num_places: int
    slate: Any  # that is being filled
    finishes: bool  # rows are made of sums by C, but while it `is_busy`
    is_busy: bool


if not TYPE_CHECKING and _core is not None:
    Slate, Workbench = _core.Slate, _core.Workbench


class Batch(Slate):
    """Rows of one length that one stream fills, and that travel to pinned memory together.

    One thread fills it, by launching what makes row `num_filled` and then counting it; any
    thread may fetch. No row needs an event of its own, and none is copied by itself.
    """

    def __init__(self, length: int, room: Room, stream: torch.cuda.Stream) -> None:
        self.room = torch.empty(MOST, length, dtype=torch.float64, device=stream.device)
        self.row_nbytes = length * self.room.itemsize
        self.address = self.room.data_ptr()
        self.num_filled = self.num_finished = self.num_arrived = 0
        self.most = MOST
        self._owner = room
        self._stream, self.stream = stream, stream.cuda_stream
        self._host = memoryview(b"")
        self._lock = threading.Lock()

    def fetch(self, index: int) -> memoryview:
        """The bytes of row `index`, on the host; waits for the device."""
        with self._lock:
            if index >= self.num_arrived:
                if self.num_filled - index < WORTHWHILE and self.num_filled < MOST:
                    time.sleep(PATIENCE_SECONDS)
                self._bring()
        return self._host[index * self.row_nbytes : (index + 1) * self.row_nbytes]

    def fill(self, index: int, room: memoryview) -> None:
        """Wait for row `index`, and put it into `room`."""
        room[:] = self.fetch(index)

    def row(self, index: int) -> Tensor:
        """Row `index` where it is made; the current stream waits for that."""
        self.finish()
        torch.cuda.current_stream(self.room.device).wait_stream(self._stream)
        return self.room[index]

    def finish(self) -> int:
        """Have rows made of all that was summed; gives their number."""
        with torch.cuda.stream(self._stream):  # where Triton launches what it has just compiled
            return self._owner.finish(self)

    def _bring(self) -> None:
        if not self.num_arrived:
            self._pinned = torch.empty(self.room.shape, dtype=torch.float64, pin_memory=True)
            self._host = self._pinned.numpy().data.cast("B")
            self.host = self._pinned.data_ptr()
        owner, side = self._owner, self._owner.side
        by_c = _core is not None and owner.finishes
        if by_c and _core.bring(owner, self, side.cuda_stream, owner.event.cuda_event):
            return
        count = self.finish()
        rows = slice(self.num_arrived, count)
        side.wait_stream(self._stream)
        with torch.cuda.stream(side):
            self._pinned[rows].copy_(self.room[rows], non_blocking=True)
        side.synchronize()
        if _core is not None:
            _core.under_way(self.num_arrived - count)
        self.num_arrived = count


# Makes the row of a dense tensor that lies at an address; gives what fills a room with it later.
RowAgain = Callable[[int, Tensor], Callable[[memoryview], None] | None]


class DeviceRow(NamedTuple):
    """The Summary of one CUDA tensor, as a row of a Batch; it is the Source of its own bytes."""

    stored: Stored
    batch: Batch
    number: int
    digest: str = ""  # none is taken on a device
    again: RowAgain | None = None  # of another tensor like it

    @property
    def numbers(self) -> Tensor:
        """The row, on the device, for the current stream."""
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
        return partial(self.fill, room)

    def fill(self, room: memoryview) -> None:
        """Wait for the row, and put it into `room`."""
        self.batch.fill(self.number, room)


class Finishes(Protocol):
    """Makes rows of sums."""

    def __call__(self, stream: int, lying: Sequence[int], count: int) -> None:
        """Finish `count` rows; sums, totals, row and partials of the first are `lying` there."""

    def teach(self, bench: Any) -> None:
        """Have `bench` do the same by C, if it can."""


class Room(Workbench):
    """What one thread's kernels on one stream share: scratch memory, and a Batch to fill.

    Sums of a few tensors lie there side by side until rows are made of them all, by one launch.
    Then, in the order of the stream, their places are free again.
    """

    def __init__(self, groups: int, length: int, device: torch.device, finishing: Finishes) -> None:
        self.sums_nbytes, self.totals_nbytes = groups * BLOCK * 8, (groups * 64 + 8) * 8
        self.partials_nbytes = (MOST_PARTIALS + 8) * 8
        fitting = max(2, SCRATCH_NBYTES // self.sums_nbytes)
        self.num_places = places = 1 << min(4, fitting.bit_length() - 1)  # divides MOST
        each = (self.sums_nbytes, self.totals_nbytes, self.partials_nbytes)
        held = [torch.empty(places * nbytes, dtype=torch.uint8, device=device) for nbytes in each]
        self.sums, self.totals, self.partials = (tensor.data_ptr() for tensor in held)
        self.slate, self.is_busy = None, False
        self.side: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.event.record(self.side)  # so that it is there
        self._held = held
        self._device, self._length, self._finishing = device, length, finishing
        self._lock = threading.Lock()

    @property
    def batch(self) -> Batch:
        """The Batch that the next row belongs to."""
        batch: Batch | None = self.slate
        if batch is None or batch.num_filled == MOST:
            stream = torch.cuda.current_stream(self._device)
            batch = self.slate = Batch(self._length, self, stream)
        return batch

    def scratch(self, number: int) -> tuple[int, int, int]:
        """Where sums, totals and terms of a checksum of row `number` of a Batch belong."""
        place = number % self.num_places
        return (
            self.sums + place * self.sums_nbytes,
            self.totals + place * self.totals_nbytes,
            self.partials + place * self.partials_nbytes,
        )

    def count(self, batch: Batch) -> None:
        """One row more has its sums; the rows are made once no more sums have room."""
        batch.num_filled += 1
        if _core is not None:
            _core.under_way(1)
        if batch.num_filled % self.num_places == 0 or batch.num_filled == MOST:
            self.finish(batch)

    def finish(self, batch: Batch) -> int:
        """Make rows of all sums of `batch`, on its own stream; gives the number of its rows."""
        with HOLD, self._lock:  # a handler of the program may have rows made, too
            self.is_busy = True
            try:
                first, end = batch.num_finished, batch.num_filled
                if first < end:
                    sums, totals, partials = self.scratch(first)
                    row = batch.address + first * batch.row_nbytes
                    self._finishing(batch.stream, (sums, totals, row, partials), end - first)
                    batch.num_finished = end
                    self._finishing.teach(self)
            finally:
                self.is_busy = False
            return end


@dataclass(eq=False)
class Tables:
    """The tables of one seed on one device."""

    device: torch.device
    seed: int
    rooms: dict[tuple[int, ...], Room] = field(default_factory=dict, repr=False)  # of launches
    finishing: dict[tuple[int, ...], Any] = field(default_factory=dict, repr=False)
    _turns: Tensor | None = field(default=None, repr=False)
    _packed_turns: Tensor | None = field(default=None, repr=False)
    _folds: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _places: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _pages: Tensor | None = field(default=None, repr=False)

    @cached_property
    def lines(self) -> Tensor:
        """The factors of a checksum for the elements of a page."""
        return torch.from_numpy(line_factors().view(np.int64)).to(self.device)

    def pages(self, end: int) -> Tensor:
        """The factors of a checksum for pages 0 to at least `end`."""
        if self._pages is None or self._pages.shape[0] < end:
            count = max(4096, 1 << (end - 1).bit_length())
            self._pages = torch.from_numpy(page_factors(0, count).view(np.int64)).to(self.device)
        return self._pages

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
