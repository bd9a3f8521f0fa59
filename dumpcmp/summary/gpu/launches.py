"""Launches the kernels that summarise a CUDA tensor, with all but the tensor settled before."""

from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from dumpcmp.summary.checksums import PAGE
from dumpcmp.summary.gpu.adding import add_pages
from dumpcmp.summary.gpu.memory import MOST_PARTIALS, Batch, Room, Tables
from dumpcmp.summary.gpu.onepass import finish, sum_units, tl

_BLOCK = 16384
_SLABS = 8  # of a turned block, each summed by programs of its own
_ALIGNED = 16  # bytes, the most that a thread loads at once
_PAIRS = (9, 0)  # the first capability that compares pairs of bfloat16
_SHORT = {torch.bfloat16: 1, torch.float16: 2}
_SUM = (torch.float64, torch.float64, torch.int32, torch.int32)
_FINISH = (torch.float64, torch.float64, torch.int32, torch.float64, torch.int64)
_ADD = (torch.int64, torch.int64, torch.int64)
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Tuning:
    """How the elements of one dtype are summed."""

    def __init__(self, dtype: torch.dtype, start: int, device: torch.device) -> None:
        fits = start * dtype.itemsize % _ALIGNED == 0
        able = torch.cuda.get_device_capability(device) >= _PAIRS
        self.short = _SHORT.get(dtype, 0) if fits and able else 0
        self.blocks = 4 if self.short else 1  # of a unit, which one program works on at once
        self.waves = 1 if self.short else 4  # programs for each processor of the device
        vector = min(8, _ALIGNED // dtype.itemsize)
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


class RowMaker:
    """How tensors of one length, dtype and device become packed rows, in two launches.

    Everything but the tensor is settled once, so that a row costs the host little. With `words`,
    the bits of such a tensor's elements, rows have its checksum, by one launch more.
    """

    def __init__(
        self, flat: Tensor, size: int, head: int, tables: Tables, start: int = 0,
        words: Tensor | None = None,
    ) -> None:  # fmt: skip
        tuning = Tuning(flat.dtype, start, flat.device)
        self._device = flat.device
        self._index = flat.device.index
        self._tables = tables
        self._length = head + size
        self._count = flat.numel()
        self._numbers = span = tuning.span(start, flat.numel(), flat.device)
        self._most = tuning.num_groups(flat.device)
        self.groups = span[-1]
        turns = tables.packed_turns((span[3] + 1) * tuning.blocks)
        places = tables.places(size)
        self._tensors = (turns, tables.half_words, places)  # which stay alive with the maker
        self._addresses = tuple(tensor.data_ptr() for tensor in self._tensors)
        grid, dtypes = (_SLABS, self.groups, 1), (flat.dtype, *_SUM)
        self._sum = _Launch(sum_units, grid, dtypes, tuning.constants, tuning.options)
        many = 1 << (self.groups * _SLABS - 1).bit_length()
        self._adding = None if words is None else _Adding(words, tables)
        num_partials = self._adding.num_partials if self._adding else 0
        constants = (head, places.shape[1], many, num_partials)
        grid = (size // 8 + 1, 1, 1)
        self._finish = _Launch(finish, grid, _FINISH, constants, {"num_warps": 16})

    def row(self, flat: Tensor, words: Tensor | None = None) -> tuple[Batch, int]:
        """The packed summary of a whole tensor with one sketch: a row of a Batch.

        Its bits lie in `words`, where those that are summed are others.
        """
        if torch._C._cuda_getDevice() != self._index:
            with torch.cuda.device(self._device):
                return self.row(flat, words)
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        room = self._room(stream)
        sums, totals, partials = room.scratch
        batch = room.batch
        number = batch.num_filled
        self._sum_up(flat, sums, totals, stream)
        if self._adding is not None:
            self._adding(flat if words is None else words, partials, stream)
        row = batch.address + number * batch.row_nbytes
        pointers = (sums, totals, self._addresses[2], row, partials)
        self._finish(stream, pointers, (self._count, self.groups))
        batch.num_filled = number + 1
        return batch, number

    def alone(self, flat: Tensor) -> Tensor:
        """The same as a row of its own, in memory of its own, which a CUDA graph can fill anew."""
        new, device = torch.empty, self._device
        with torch.cuda.device(device):
            stream = torch.cuda.current_stream().cuda_stream
            sums = new(self.groups, _BLOCK, dtype=torch.float64, device=device)
            totals = new(self.groups * _SLABS, 8, dtype=torch.float64, device=device)
            partials = new(MOST_PARTIALS, dtype=torch.int64, device=device)
            row = new(self._length, dtype=torch.float64, device=device)
            self._sum_up(flat, sums.data_ptr(), totals.data_ptr(), stream)
            if self._adding is not None:
                self._adding(flat, partials.data_ptr(), stream)
            held = (sums, totals, self._tensors[2], row, partials)
            pointers = tuple(tensor.data_ptr() for tensor in held)
            self._finish(stream, pointers, (self._count, self.groups))
        return row

    def sums(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of the turned blocks by group of units, and totals by program."""
        device, groups = self._device, self.groups
        with torch.cuda.device(device):
            sums = torch.empty(groups, _BLOCK, dtype=torch.float64, device=device)
            totals = torch.empty(groups * _SLABS, 8, dtype=torch.float64, device=device)
            stream = torch.cuda.current_stream().cuda_stream
            self._sum_up(flat, sums.data_ptr(), totals.data_ptr(), stream)
        return sums, totals

    def _sum_up(self, flat: Tensor, sums: int, totals: int, stream: int) -> None:
        address = flat.data_ptr()
        if address % _ALIGNED:
            flat = flat.clone()
            address = flat.data_ptr()
        self._sum(stream, (address, sums, totals, *self._addresses[:2]), self._numbers)

    def _room(self, stream: int) -> Room:
        """Memory shared by all rows of a stream, since its kernels run in order."""
        key = (stream, get_ident(), self._most, self._length)
        room = self._tables.rooms.get(key)
        if room is None:
            room = self._tables.rooms[key] = Room(self._most, self._length, self._device)
        return room


class _Adding:
    """How the bits of tensors of one length and width become terms of their checksums."""

    def __init__(self, words: Tensor, tables: Tables) -> None:
        num_pages = -(-words.numel() // PAGE)
        self.num_partials = min(MOST_PARTIALS, max(16, 1 << (num_pages - 1).bit_length()))
        self._tensors = (tables.lines, tables.pages(num_pages))  # which stay alive with it
        self._addresses = tuple(tensor.data_ptr() for tensor in self._tensors)
        self._numbers = (words.numel(), num_pages)
        dtypes = (WORDS[words.itemsize], *_ADD)
        grid, bits = (self.num_partials, 1, 1), 8 * words.itemsize
        self._add = _Launch(add_pages, grid, dtypes, (bits,), {"num_warps": 8})

    def __call__(self, words: Tensor, partials: int, stream: int) -> None:
        if words.data_ptr() % _ALIGNED:
            words = words.clone()
        self._add(stream, (words.data_ptr(), *self._addresses, partials), self._numbers)


@dataclass(slots=True, eq=False)
class _Launch:
    """A kernel with its grid and constants, launched without Triton's look-ups when it can be."""

    _kernel: Any
    _grid: tuple[int, int, int]
    _dtypes: tuple[torch.dtype, ...]  # of what the pointers point to
    _constants: tuple[Any, ...]
    _options: dict[str, int]
    _before: tuple[Any, ...] = ()  # what the compiled kernel wants before the arguments
    _launch: Any = None
    _direct: bool = True  # until it fails once

    def __call__(self, stream: int, pointers: tuple[int, ...], numbers: tuple[int, ...]) -> None:
        if self._launch is None:
            self._compile(pointers, numbers)
            return
        try:
            self._launch(*self._grid, stream, *self._before, *pointers, *numbers, *self._constants)
        except TypeError:  # the compiled kernels of another Triton take other arguments
            self._launch, self._direct = None, False
            self._compile(pointers, numbers)

    def _compile(self, pointers: tuple[int, ...], numbers: tuple[int, ...]) -> None:
        """Launch in Triton's own way, and keep the way to what it has compiled."""
        typed = map(_Pointer, pointers, self._dtypes)
        launch = self._kernel[self._grid]
        compiled = launch(*typed, *numbers, *self._constants, **self._options)
        run: Any = getattr(compiled, "run", None)
        if not self._direct or getattr(run, "__dict__", {}).keys() != _LAUNCHER:
            return
        if run.global_scratch_size or run.profile_scratch_size:
            return
        told = (compiled.function, run.launch_cooperative_grid, run.launch_pdl)
        self._before = (*told, None, None, compiled.packed_metadata, None, None, None)
        self._launch = run.launch


# The fields of Triton's launcher whose way of launching is known here; others are left to Triton.
_LAUNCHER = {
    "global_scratch_align", "global_scratch_size", "launch", "launch_cooperative_grid",
    "launch_pdl", "num_ctas", "profile_scratch_align", "profile_scratch_size",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Pointer:
    """An address as Triton takes it when it compiles."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


def summed(flat: Tensor, start: int, tables: Tables) -> tuple[Tensor, Tensor]:
    """Sums of the turned blocks, and totals, of elements that begin at index `start`."""
    sums, totals = RowMaker(flat, 0, 0, tables, start).sums(flat)
    low, high = totals[:, 0].amin(0, keepdim=True), totals[:, 1].amax(0, keepdim=True)
    return sums.sum(0), torch.cat([low, high, totals[:, 2:].sum(0)])
