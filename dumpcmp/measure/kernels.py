"""The one pass over a CUDA tensor that a Summary needs, as Triton kernels."""

from importlib import import_module
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dumpcmp.measure.device import Tables

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_BLOCK = 16384
_SLAB = 2048  # elements of a turned block that one program sums
_SLABS = _BLOCK // _SLAB
_WAVES = 4  # programs for each processor of the device
_ALIGNED = 16  # bytes; kernels are compiled apart for tensors that begin elsewhere


class Plan:
    """How tensors of one length, dtype and device become packed rows, in three launches.

    Everything but the tensor is settled once, so that a row costs the host little.
    """

    def __init__(
        self, flat: Tensor, size: int, head: int, tables: "Tables", start: int = 0
    ) -> None:
        self._device = flat.device
        self._tables = tables
        self._length = head + size
        self._count = flat.numel()
        self._numbers = span = _span(start, flat.numel(), flat.device)
        self.groups = span[-1]
        self._turns = tables.packed_turns(span[3] + 1)
        self._sum = _Launch(
            _sum_blocks, (_SLABS, self.groups), *_constants(flat.dtype), **_options(flat.dtype)
        )
        powers = map(_power, (self.groups, self.groups * _SLABS))
        self._join = _Launch(_join_groups, (257,), *powers, num_warps=8)
        self._fold = _Launch(_fold, (size // 32,), size, head, num_warps=16)

    def row(self, flat: Tensor) -> Tensor:
        """The packed summary of a whole tensor with one sketch."""
        if torch.cuda.current_device() != self._device.index:
            with torch.cuda.device(self._device):
                return self.row(flat)
        stream = torch._C._cuda_getCurrentRawStream(self._device.index)
        sums, totals, turned = self._room(stream)
        row = torch.empty(self._length, dtype=torch.float64, device=self._device)
        self._sum_up(flat, sums, totals, stream)
        self._join(stream, sums, totals, turned, row, self._count, self.groups)
        self._fold(stream, turned, self._tables.bases, row)
        return row

    def sums(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of the turned blocks by group of blocks, and totals by program."""
        with torch.cuda.device(self._device):
            sums, totals, _ = _scratch(self.groups, self._device)
            self._sum_up(flat, sums, totals, torch.cuda.current_stream().cuda_stream)
        return sums, totals

    def _sum_up(self, flat: Tensor, sums: Tensor, totals: Tensor, stream: int) -> None:
        args = (flat, sums, totals, self._turns, self._tables.half_words, *self._numbers)
        launch = self._sum if flat.data_ptr() % _ALIGNED == 0 else self._sum.slowly
        launch(stream, *args)

    def _room(self, stream: int) -> tuple[Tensor, Tensor, Tensor]:
        """Scratch memory, shared by all rows of a stream, since its kernels run in order."""
        key = (stream, get_ident())
        room = self._tables.scratch.get(key)
        if room is None:
            room = self._tables.scratch[key] = _scratch(_num_groups(self._device), self._device)
        return room


class _Launch:
    """A kernel with its grid and constants, launched without Triton's look-ups when it can be."""

    def __init__(self, kernel: Any, grid: tuple[int, ...], *constants: Any, **options: int) -> None:
        self._kernel = kernel
        self._grid = grid
        self._constants = constants
        self._options = options
        self._compiled: Any = None
        self._direct = True  # until it fails once

    def __call__(self, stream: int, *args: Any) -> None:
        if self._compiled is None:
            compiled = self.slowly(stream, *args)
            if self._direct:
                self._compiled = compiled[(*self._grid, 1, 1)[:3]]
            return
        try:
            self._compiled(*args, *self._constants, stream=stream)
        except TypeError:  # the compiled kernels of another Triton take other arguments
            self._compiled, self._direct = None, False
            self.slowly(stream, *args)

    def slowly(self, _stream: int, *args: Any) -> Any:
        """Launch in Triton's own way, and give the compiled kernel."""
        return self._kernel[self._grid](*args, *self._constants, **self._options)


def summed(flat: Tensor, start: int, tables: "Tables") -> tuple[Tensor, Tensor]:
    """Sums of the turned blocks, and totals, of elements that begin at index `start`."""
    sums, totals = Plan(flat, 0, 0, tables, start).sums(flat)
    low, high = totals[:, 0].amin(0, keepdim=True), totals[:, 1].amax(0, keepdim=True)
    return sums.sum(0), torch.cat([low, high, totals[:, 2:].sum(0)])


def _span(start: int, count: int, device: torch.device) -> tuple[int, ...]:
    """The numbers by which `_sum_blocks` walks over `count` elements.

    Programs form a grid of slabs by groups. A program takes every so manieth block, and of each
    the elements that the block's rotation brings into its slab, so that its sums stay in
    registers; no two programs write to one place, and the sums have a fixed order.
    """
    end = start + count
    first, last = -(-start // _BLOCK), end // _BLOCK  # the blocks that are there whole
    edges = [b for b in (start // _BLOCK, last) if not first <= b < last and b * _BLOCK < end]
    edge, edge_end, edge_step = 0, 0, 1
    if edges:
        edge, edge_end, edge_step = edges[0], edges[-1] + 1, max(1, edges[-1] - edges[0])
    groups = max(1, min(last - first, _num_groups(device)))
    return start, end, first, last, edge, edge_end, edge_step, groups


def _constants(dtype: torch.dtype) -> tuple[Any, ...]:
    """What a sum is taken in, rows of half runs, and elements that one thread loads at once."""
    kind = tl.float64 if dtype is torch.float64 else tl.float32
    return kind, _SLAB // 32, min(8, _ALIGNED // dtype.itemsize)


def _options(dtype: torch.dtype) -> dict[str, int]:
    """Short floats need so few registers that all programs fit on the device at once."""
    return {"num_warps": 8, "maxnreg": 64} if dtype.itemsize == 2 else {"num_warps": 8}


def _scratch(groups: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    sums = torch.empty(groups, _BLOCK, dtype=torch.float64, device=device)
    totals = torch.empty(groups * _SLABS, 8, dtype=torch.float64, device=device)
    return sums, totals, torch.empty(_BLOCK, dtype=torch.float64, device=device)


def _num_groups(device: torch.device) -> int:
    """Enough programs to fill the device."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return int(max(1, _WAVES * processors // _SLABS))


def _power(count: int) -> int:
    """The power of two that holds `count`."""
    return 1 << (count - 1).bit_length()


@triton.jit
def _sources(turn, words, half):  # type: ignore[no-untyped-def]
    """Of each half run of a turned block: where it lies in the block, and its signs, inverted."""
    run = ((half >> 1) - turn) & 255
    word = tl.load(words + 2 * (run + ((turn >> 8) & 255)) + (half & 1))
    return run * 64 + (half & 1) * 32, word ^ -(turn >> 16)


@triton.jit
def _load(x, turn, words, half, lane, start, block, last):  # type: ignore[no-untyped-def]
    """The elements of a block before `last`, and their signs."""
    place, word = _sources(turn, words, half)
    begin = tl.cast(block, tl.int64) * 16384 - start
    value = tl.load(x + (begin + place[:, None] + lane[None, :]), mask=block < last, other=0.0)
    return value, word


@triton.jit
def _signed(exact, word, lane):  # type: ignore[no-untyped-def]
    """The elements with the signs that the bits of `word` give them."""
    minus = (word[:, None] << (31 - lane)[None, :]) & -2147483648
    return (exact.to(tl.int64, bitcast=True) ^ (minus.to(tl.int64) << 32)).to(
        tl.float64, bitcast=True
    )


@triton.jit  # type: ignore[untyped-decorator]
def _by_thread(tile, rows: tl.constexpr, vector: tl.constexpr):  # type: ignore[no-untyped-def]
    """What one thread loaded together, along the last dim."""
    return tl.reshape(tile, (rows, 32 // vector, vector))


@triton.jit  # type: ignore[untyped-decorator]
def _whole_blocks(  # type: ignore[no-untyped-def]
    x, turns, words, half, lane, start, block, last, step,
    kind: tl.constexpr, rows: tl.constexpr, vector: tl.constexpr,
):  # fmt: skip
    """Sum blocks that are there whole and finite; the next two are loaded while one is summed."""
    turned = tl.zeros((rows, 32), tl.float64)
    total = tl.zeros((rows, 32 // vector), tl.float64)
    squares = tl.zeros((rows, 32 // vector), tl.float64)
    low = tl.full((rows, 32 // vector), float("inf"), kind)
    high = tl.full((rows, 32 // vector), float("-inf"), kind)
    zeros = tl.zeros((rows, 32 // vector), tl.int32)
    value, word = _load(x, tl.load(turns + tl.minimum(block, last)), words, half, lane, start,
                        block, last)  # fmt: skip
    after = block + step
    coming, next_word = _load(x, tl.load(turns + tl.minimum(after, last)), words, half, lane,
                              start, after, last)  # fmt: skip
    turn = tl.load(turns + tl.minimum(after + step, last))
    for now in range(block, last, step):
        after = now + 2 * step
        later, later_word = _load(x, turn, words, half, lane, start, after, last)
        turn = tl.load(turns + tl.minimum(after + step, last))
        number = value.to(kind)
        low = tl.minimum(low, tl.min(_by_thread(number, rows, vector), 2))
        high = tl.maximum(high, tl.max(_by_thread(number, rows, vector), 2))
        zeros += tl.sum(_by_thread((number == 0.0).to(tl.int32), rows, vector), 2)
        exact = number.to(tl.float64)
        total += tl.sum(_by_thread(exact, rows, vector), 2)
        squares += tl.sum(_by_thread(exact * exact, rows, vector), 2)
        turned += _signed(exact, word, lane)
        value, word = coming, next_word
        coming, next_word = later, later_word
    return turned, total, squares, low, high, zeros


@triton.jit  # type: ignore[untyped-decorator]
def _any_blocks(  # type: ignore[no-untyped-def]
    x, turns, words, half, lane, start, end, first, last, step,
    turned, total, squares, low, high, nans, ups, downs, zeros,
    kind: tl.constexpr, rows: tl.constexpr, vector: tl.constexpr,
):  # fmt: skip
    """Add blocks that may be there in part, and count what is not finite."""
    for now in range(first, last, step):
        place, word = _sources(tl.load(turns + now), words, half)
        index = tl.cast(now, tl.int64) * 16384 + place[:, None] + lane[None, :]
        there = (index >= start) & (index < end)
        number = tl.load(x + (index - start), mask=there, other=0.0).to(kind)
        nan = number != number
        up = number == float("inf")
        down = number == float("-inf")
        nans += tl.sum(_by_thread(nan.to(tl.int32), rows, vector), 2)
        ups += tl.sum(_by_thread(up.to(tl.int32), rows, vector), 2)
        downs += tl.sum(_by_thread(down.to(tl.int32), rows, vector), 2)
        zeros += tl.sum(_by_thread((there & (number == 0.0)).to(tl.int32), rows, vector), 2)
        seen = there & ((nan | up | down) == 0)
        least = tl.where(seen, number, float("inf"))
        most = tl.where(seen, number, float("-inf"))
        low = tl.minimum(low, tl.min(_by_thread(least, rows, vector), 2))
        high = tl.maximum(high, tl.max(_by_thread(most, rows, vector), 2))
        exact = tl.where(seen, number, 0.0).to(tl.float64)
        total += tl.sum(_by_thread(exact, rows, vector), 2)
        squares += tl.sum(_by_thread(exact * exact, rows, vector), 2)
        turned += _signed(exact, word, lane)
    return turned, total, squares, low, high, nans, ups, downs, zeros


@triton.jit  # type: ignore[untyped-decorator]
def _sum_blocks(  # type: ignore[no-untyped-def]
    x, sums, totals, turns, words, start, end, first, last, edge, edge_end, edge_step, groups,
    kind: tl.constexpr, rows: tl.constexpr, vector: tl.constexpr,
):  # fmt: skip
    slab = tl.program_id(0)
    group = tl.program_id(1)
    half = slab * rows + tl.arange(0, rows)  # half runs of the turned block
    lane = tl.arange(0, 32)
    turned, total, squares, low, high, zeros = _whole_blocks(
        x, turns, words, half, lane, start, first + group, last, groups, kind, rows, vector
    )
    nans = tl.zeros((rows, 32 // vector), tl.int32)
    ups = tl.zeros((rows, 32 // vector), tl.int32)
    downs = tl.zeros((rows, 32 // vector), tl.int32)
    poison = tl.sum(tl.sum(total, 1), 0) * 0.0
    if poison != 0.0:  # NaN: an element is not finite, so look at each
        none = tl.zeros((rows, 32 // vector), tl.int32)
        turned, total, squares, low, high, nans, ups, downs, zeros = _any_blocks(
            x, turns, words, half, lane, start, end, first + group, last, groups,
            tl.zeros((rows, 32), tl.float64), none.to(tl.float64), none.to(tl.float64),
            tl.full((rows, 32 // vector), float("inf"), kind),
            tl.full((rows, 32 // vector), float("-inf"), kind),
            none, none, none, none, kind, rows, vector,
        )  # fmt: skip
    stop = edge + (edge_end - edge) * (group == 0).to(tl.int32)  # the first group's alone
    turned, total, squares, low, high, nans, ups, downs, zeros = _any_blocks(
        x, turns, words, half, lane, start, end, edge, stop, edge_step,
        turned, total, squares, low, high, nans, ups, downs, zeros, kind, rows, vector,
    )  # fmt: skip
    place = (half * 32)[:, None] + lane[None, :]
    tl.store(sums + group * 16384 + place, turned)
    at = totals + (group * (512 // rows) + slab) * 8
    tl.store(at, tl.min(tl.min(low, 1), 0).to(tl.float64))
    tl.store(at + 1, tl.max(tl.max(high, 1), 0).to(tl.float64))
    tl.store(at + 2, tl.sum(tl.sum(total, 1), 0))
    tl.store(at + 3, tl.sum(tl.sum(squares, 1), 0))
    tl.store(at + 4, tl.sum(tl.sum(nans, 1), 0).to(tl.float64))
    tl.store(at + 5, tl.sum(tl.sum(ups, 1), 0).to(tl.float64))
    tl.store(at + 6, tl.sum(tl.sum(downs, 1), 0).to(tl.float64))
    tl.store(at + 7, tl.sum(tl.sum(zeros, 1), 0).to(tl.float64))


@triton.jit  # type: ignore[untyped-decorator]
def _join_groups(  # type: ignore[no-untyped-def]
    sums, totals, turned, row, count, groups, width: tl.constexpr, many: tl.constexpr
):
    """Add the groups up, 64 places a program; the last program makes the leading numbers."""
    program = tl.program_id(0)
    if program == 256:
        _lead(totals, row, groups * 8, count, many)
    else:
        place = program * 64 + tl.arange(0, 64)
        group = tl.arange(0, width)[:, None]
        tile = tl.load(sums + group * 16384 + place[None, :], mask=group < groups, other=0.0)
        tl.store(turned + place, tl.sum(tile, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _fold(  # type: ignore[no-untyped-def]
    turned, bases, row, size: tl.constexpr, head: tl.constexpr
):
    """Add the runs up where they lie in the buckets, 32 buckets a program."""
    bucket = tl.program_id(0) * 32 + tl.arange(0, 32)
    run = tl.arange(0, 256)
    lane = (bucket[None, :] - tl.load(bases + run)[:, None]) & (size - 1)
    tile = tl.load(turned + run[:, None] * 64 + lane, mask=lane < 64, other=0.0)
    tl.store(row + head + bucket, tl.sum(tile, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _lead(totals, row, num_totals, count, many: tl.constexpr):  # type: ignore[no-untyped-def]
    """The leading numbers of a packed row from the totals of all programs."""
    at = tl.arange(0, many)[:, None]
    column = tl.arange(0, 8)
    there = (at < num_totals) & (column >= 0)[None, :]
    tile = tl.load(totals + at * 8 + column[None, :], mask=there, other=0.0)
    low = tl.min(tl.min(tl.where(there & (column == 0)[None, :], tile, float("inf")), 0), 0)
    high = tl.max(tl.max(tl.where(there & (column == 1)[None, :], tile, float("-inf")), 0), 0)
    sums = tl.sum(tile, 0)
    total = _entry(sums, column, 2)
    squares = _entry(sums, column, 3)
    nans = _entry(sums, column, 4)
    ups = _entry(sums, column, 5)
    downs = _entry(sums, column, 6)
    zeros = _entry(sums, column, 7)
    finite = tl.cast(count, tl.float64) - nans - ups - downs
    none = total * 0.0 / finite  # NaN where nothing is finite, else 0
    mean = total / finite
    variance = squares / finite - mean * mean
    tl.store(row, tl.cast(count, tl.float64))
    tl.store(row + 1, nans)
    tl.store(row + 2, ups)
    tl.store(row + 3, downs)
    tl.store(row + 4, zeros)
    tl.store(row + 5, low + none)
    tl.store(row + 6, high + none)
    tl.store(row + 7, mean)
    tl.store(row + 8, tl.sqrt(tl.where(variance < 0.0, 0.0, variance)))
    tl.store(row + 9, tl.sqrt(squares))
    tl.store(row + 10, total)
    tl.store(row + 11, squares)
    tl.store(row + 12 + tl.arange(0, 4), tl.full((4,), -1.0, tl.float64))


@triton.jit
def _entry(numbers, places, place):  # type: ignore[no-untyped-def]
    return tl.sum(tl.where(places == place, numbers, 0.0), 0)
