"""Launches the kernels that summarise a CUDA tensor, with all but the tensor settled before."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.built import built
from dumpcmp.summary.checksums import PAGE
from dumpcmp.summary.gpu.adding import add_pages
from dumpcmp.summary.gpu.gaps import ALIGNED, Runs
from dumpcmp.summary.gpu.kernels import Launch
from dumpcmp.summary.gpu.memory import MOST_PARTIALS, Batch, Room, Tables
from dumpcmp.summary.gpu.onepass import finish, sum_units, tl

_core: Any = built("dumpcmp.summary.gpu._rows")
_BLOCK = 16384
_SLABS = 8  # of a turned block, each summed by programs of its own
_PAIRS = (9, 0)  # the first capability that compares pairs of bfloat16
_SHORT = {torch.bfloat16: 1, torch.float16: 2}
_SUM = (torch.float64, torch.float64, torch.int32, torch.int32)
_FINISH = (torch.float64, torch.float64, torch.int32, torch.float64, torch.int64)
_ADD = (torch.int64, torch.int64, torch.int64)
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Tuning:
    """How the elements of one dtype are summed."""

    def __init__(self, dtype: torch.dtype, start: int, device: torch.device) -> None:
        fits = start * dtype.itemsize % ALIGNED == 0
        able = torch.cuda.get_device_capability(device) >= _PAIRS
        self.short = _SHORT.get(dtype, 0) if fits and able else 0
        self.blocks = 4 if self.short else 1  # of a unit, which one program works on at once
        self.waves = 1 if self.short else 4  # programs for each processor of the device
        vector = min(8, ALIGNED // dtype.itemsize)
        kind = tl.float64 if dtype is torch.float64 else tl.float32
        self.constants = (kind, vector, self.blocks, self.short)
        registers = 255 if self.short else 64  # few, so that all programs run at once
        self.options = {"num_warps": 8}
        if dtype.itemsize == 2:
            self.options["maxnreg"] = registers

    def num_groups(self, device: torch.device) -> int:
        """Enough programs to fill the device."""
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        groups = max(1, self.waves * processors // _SLABS)
        return groups // 16 * 16 or groups  # `finish` takes 16 at once

    def span(self, start: int, count: int, device: torch.device) -> tuple[int, ...]:
        """The numbers by which `sum_units` walks over `count` elements.

        Programs form a grid of slabs by groups. A program takes every so manieth unit, and of
        each block the elements that its rotation brings into the slab, so that its sums stay in
        registers; no two programs write to one place, and the sums have a fixed order.
        """
        end, unit = start + count, _BLOCK * self.blocks
        first, last = -(-start // unit), end // unit  # the units that are there whole
        edges = [u for u in (start // unit, last) if not first <= u < last and u * unit < end]
        edge, edge_end, edge_step = 0, 0, 1
        if edges:
            edge, edge_end, edge_step = edges[0], edges[-1] + 1, max(1, edges[-1] - edges[0])
        groups = max(1, min(last - first, self.num_groups(device)))
        return start, end, first, last, edge, edge_end, edge_step, groups


@cache
def _driver_launches() -> bool:
    """Whether the driver can be asked directly to launch a kernel."""
    return _core is not None and bool(_core.open_driver("libcuda.so.1"))


class RowMaker:
    """How tensors of one length, dtype and device become packed rows.

    Everything but the tensor is settled once, so that a row costs the host little: a launch for
    its sums, and of those of several rows one that finishes them. With `words`, the bits of such
    a tensor's elements, rows have its checksum, by one launch more. With `runs` the tensors have
    gaps, all the same ones, and are read as they lie.
    """

    def __init__(
        self, flat: Tensor, size: int, head: int, tables: Tables, start: int = 0,
        words: Tensor | None = None, runs: Runs | None = None,
    ) -> None:  # fmt: skip
        tuning = Tuning(flat.dtype, start, flat.device)
        self._device = flat.device
        self._index = flat.device.index
        self._tables = tables
        self._shape = (size, head)
        self._has_gaps, (num_dims, *lying) = runs is not None, runs or Runs()
        span = tuning.span(start, flat.numel(), flat.device)
        self._numbers = (*span, *lying)
        self._most = tuning.num_groups(flat.device)
        self.groups = span[-1]
        turns = tables.packed_turns((span[3] + 1) * tuning.blocks)
        self._tensors = (turns, tables.half_words)  # which stay alive with the maker
        self._addresses = tuple(tensor.data_ptr() for tensor in self._tensors)
        grid, dtypes = (_SLABS, self.groups, 1), (flat.dtype, *_SUM)
        constants = (*tuning.constants, num_dims)
        self._sum = Launch(sum_units, grid, dtypes, constants, tuning.options)
        self._adding = None if words is None else _Adding(words, tables)
        self._quick: Any = None  # makes rows by one call of C, once all kernels are compiled

    def row(self, flat: Tensor, words: Tensor | None = None) -> tuple[Batch, int]:
        """The packed summary of a whole tensor with one sketch: a row of a Batch.

        Its bits lie in `words`, where those that are summed are others.
        """
        if torch._C._cuda_getDevice() != self._index:
            with torch.cuda.device(self._device):
                return self.row(flat, words)
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        room = self._room(stream)
        batch = room.batch
        number = batch.num_filled
        sums, totals, partials = room.scratch(number)
        self._sum_up(flat, sums, totals, stream)
        if self._adding is not None:
            self._adding(flat if words is None else words, partials, stream)
        room.count(batch)
        return batch, number

    @property
    def again(self) -> Any:
        """What makes the row of a tensor that lies so at some address, by one call of C.

        None before all kernels are compiled, or where they cannot be launched so.
        """
        adding, summing = self._adding, self._sum.compiled
        if self._quick is None and summing is not None and _driver_launches():
            more = adding and adding.launch.compiled
            if adding is None or more is not None:
                asks = (torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream, self._room)
                fixed = (self._addresses, self._numbers, adding and adding.fixed)
                self._quick = _core.Rows(self._index, *asks, summing, more, *fixed)
                self._quick.takes_gaps = self._has_gaps
        return self._quick

    def alone(self, flat: Tensor) -> Tensor:
        """The same as a row of its own, in memory of its own, which a CUDA graph can fill anew."""
        new, device, (size, head) = torch.empty, self._device, self._shape
        with torch.cuda.device(device):
            stream = torch.cuda.current_stream().cuda_stream
            sums, totals = self._scratch()
            partials = new(MOST_PARTIALS + 8, dtype=torch.int64, device=device)
            row = new(head + size, dtype=torch.float64, device=device)
            self._sum_up(flat, sums.data_ptr(), totals.data_ptr(), stream)
            if self._adding is not None:
                self._adding(flat, partials.data_ptr(), stream)
            lying = [tensor.data_ptr() for tensor in (sums, totals, row, partials)]
            self._finishing()(stream, lying, 1)
        return row

    def sums(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of the turned blocks by group of units, and totals by program."""
        with torch.cuda.device(self._device):
            sums, totals = self._scratch()
            stream = torch.cuda.current_stream().cuda_stream
            self._sum_up(flat, sums.data_ptr(), totals.data_ptr(), stream)
        return sums, totals[1:]

    def _scratch(self) -> tuple[Tensor, Tensor]:
        new, device, groups = torch.empty, self._device, self.groups
        sums = new(groups, _BLOCK, dtype=torch.float64, device=device)
        return sums, new(groups * _SLABS + 1, 8, dtype=torch.float64, device=device)

    def _sum_up(self, flat: Tensor, sums: int, totals: int, stream: int) -> None:
        address = flat.data_ptr()
        if address % ALIGNED:
            if self._has_gaps:
                raise ValueError(f"a tensor with gaps at {address:#x}, which kernels cannot read")
            flat = flat.clone()
            address = flat.data_ptr()
        self._sum(stream, (address, sums, totals, *self._addresses), self._numbers)

    def _finishing(self) -> Finishing:
        """What finishes rows of this shape, with as many groups and with or without a checksum."""
        key = (*self._shape, self._most, self._adding is not None)
        found = self._tables.finishing.get(key)
        if found is None:
            found = self._tables.finishing[key] = Finishing(self._tables, *key)
        return found

    def _room(self, stream: int) -> Room:
        """Memory shared by all rows of a stream, since its kernels run in order."""
        finishing = self._finishing()
        key = (stream, get_ident(), id(finishing))
        room = self._tables.rooms.get(key)
        if room is None:
            size, head = self._shape
            room = Room(self._most, head + size, self._device, finishing)
            self._tables.rooms[key] = room
        return room


class Finishing:
    """Makes packed rows of the sums in scratch memory, as many as lie there, by one launch."""

    def __init__(self, tables: Tables, size: int, head: int, most: int, checksum: bool) -> None:
        self._places = tables.places(size)  # which stays alive with it
        many = 1 << (most * _SLABS - 1).bit_length()
        constants = (head, size, self._places.shape[1], most, many, MOST_PARTIALS, int(checksum))
        self._programs = size // 8 + 1
        grid = (self._programs, 1, 1)
        self._launch = Launch(finish, grid, _FINISH, constants, {"num_warps": 16})

    def __call__(self, stream: int, lying: Sequence[int], count: int) -> None:
        """Finish `count` rows; sums, totals, row and partials of the first are `lying` there."""
        pointers = (*lying[:2], self._places.data_ptr(), *lying[2:])
        self._launch(stream, pointers, grid=(self._programs, count, 1))

    def teach(self, bench: Any) -> None:
        """Have `bench` finish rows by C, once the kernel is compiled."""
        compiled = self._launch.compiled
        if compiled is not None and _driver_launches() and not bench.finishes:
            bench.finish_by(compiled, self._places.data_ptr())


class _Adding:
    """How the bits of tensors of one length and width become terms of their checksums."""

    def __init__(self, words: Tensor, tables: Tables) -> None:
        num_pages = -(-words.numel() // PAGE)
        num_partials = min(MOST_PARTIALS, max(16, 1 << (num_pages - 1).bit_length()))
        self._tensors = (tables.lines, tables.pages(num_pages))  # which stay alive with it
        self._addresses = tuple(tensor.data_ptr() for tensor in self._tensors)
        self._numbers = (words.numel(), num_pages)
        dtypes = (WORDS[words.itemsize], *_ADD)
        grid, constants = (num_partials, 1, 1), (8 * words.itemsize, MOST_PARTIALS)
        self.launch = Launch(add_pages, grid, dtypes, constants, {"num_warps": 8})
        self.fixed = (self._addresses, self._numbers)

    def __call__(self, words: Tensor, partials: int, stream: int) -> None:
        if words.data_ptr() % ALIGNED:
            words = words.clone()
        self.launch(stream, (words.data_ptr(), *self._addresses, partials), self._numbers)


def summed(flat: Tensor, start: int, tables: Tables) -> tuple[Tensor, Tensor]:
    """Sums of the turned blocks, and totals, of elements that begin at index `start`."""
    sums, totals = RowMaker(flat, 0, 0, tables, start).sums(flat)
    low, high = totals[:, 0].amin(0, keepdim=True), totals[:, 1].amax(0, keepdim=True)
    return sums.sum(0), torch.cat([low, high, totals[:, 2:].sum(0)])
