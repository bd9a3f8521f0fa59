"""The one pass over a CUDA tensor that a Summary needs, as Triton kernels."""

from importlib import import_module
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


def row_of(flat: Tensor, size: int, head: int, tables: "Tables") -> Tensor:
    """The packed summary of a whole tensor with one sketch of `size`, in three launches."""
    sums, totals = _partial(flat, 0, tables)
    turned = torch.empty(_BLOCK, dtype=torch.float64, device=flat.device)
    row = torch.empty(head + size, dtype=torch.float64, device=flat.device)
    groups = sums.shape[0]
    with torch.cuda.device(flat.device):
        _join_groups[(256,)](
            sums, turned, groups, width=triton.next_power_of_2(groups), num_warps=4
        )
        _fold[(size // 64,)](
            turned, totals, tables.bases, row, groups * _SLABS, flat.numel(), size=size, head=head,
            width=triton.next_power_of_2(groups * _SLABS), num_warps=16,
        )  # fmt: skip
    return row


def summed(flat: Tensor, start: int, tables: "Tables") -> tuple[Tensor, Tensor]:
    """Sums of the turned blocks, and totals, of elements that begin at index `start`."""
    sums, totals = _partial(flat, start, tables)
    low, high = totals[:, 0].amin(0, keepdim=True), totals[:, 1].amax(0, keepdim=True)
    return sums.sum(0), torch.cat([low, high, totals[:, 2:].sum(0)])


def _partial(flat: Tensor, start: int, tables: "Tables") -> tuple[Tensor, Tensor]:
    """Sums of the turned blocks by group of blocks, and totals by program.

    Programs form a grid of slabs by groups. A program takes every so manieth block, and of each
    the elements that the block's rotation brings into its slab, so that its sums stay in
    registers; no two programs write to one place, and the sums have a fixed order.
    """
    end = start + flat.numel()
    first, last = -(-start // _BLOCK), end // _BLOCK  # the blocks that are there whole
    edges = [b for b in (start // _BLOCK, last) if not first <= b < last and b * _BLOCK < end]
    groups = max(1, min(last - first, _num_groups(flat.device)))
    sums = torch.empty(groups, _BLOCK, dtype=torch.float64, device=flat.device)
    totals = torch.empty(groups * _SLABS, 8, dtype=torch.float64, device=flat.device)
    turns = tables.turns(last + 1)
    kind = tl.float64 if flat.dtype is torch.float64 else tl.float32
    edge_end, edge_step = (edges[-1] + 1, max(1, edges[-1] - edges[0])) if edges else (0, 1)
    with torch.cuda.device(flat.device):
        _sum_blocks[(_SLABS, groups)](
            flat, sums, totals, turns, tables.half_words, start, end, first, last,
            edges[0] if edges else 0, edge_end, edge_step, turns.shape[1], groups,
            kind=kind, rows=_SLAB // 32, num_warps=8,
        )  # fmt: skip
    return sums, totals


def _num_groups(device: torch.device) -> int:
    """Enough programs to fill the device twice."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, 2 * processors // _SLABS)


@triton.jit
def _sources(turns, words, half, block, num_turns):  # type: ignore[no-untyped-def]
    """Of each half run of a turned block: where it lies in the block, and its signs, inverted."""
    rotation = tl.load(turns + block)
    offset = tl.load(turns + num_turns + block)
    common = tl.load(turns + 2 * num_turns + block)
    run = ((half >> 1) - rotation) & 255
    word = tl.load(words + 2 * (run + offset) + (half & 1))
    return run * 64 + (half & 1) * 32, word ^ ((common - 1) >> 1)


@triton.jit  # type: ignore[untyped-decorator]
def _whole_blocks(  # type: ignore[no-untyped-def]
    x, turns, words, half, lane, start, block, last, step, num_turns,
    kind: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    """Sum blocks that are there whole and finite; the next one is loaded while one is summed."""
    turned = tl.zeros((rows, 32), tl.float64)
    total = tl.zeros((rows, 32), tl.float64)
    squares = tl.zeros((rows, 32), tl.float64)
    low = tl.full((rows, 32), float("inf"), kind)
    high = tl.full((rows, 32), float("-inf"), kind)
    zeros = tl.zeros((rows, 32), tl.int32)
    place, word = _sources(turns, words, half, tl.minimum(block, num_turns - 1), num_turns)
    begin = tl.cast(block, tl.int64) * 16384 - start
    there = (lane[None, :] >= 0) & (half[:, None] >= 0) & (block < last)
    value = tl.load(x + (begin + place[:, None] + lane[None, :]), mask=there, other=0.0)
    for now in range(block, last, step):
        after = now + step
        near = tl.minimum(after, num_turns - 1)
        place, next_word = _sources(turns, words, half, near, num_turns)
        begin = tl.cast(after, tl.int64) * 16384 - start
        there = (lane[None, :] >= 0) & (half[:, None] >= 0) & (after < last)
        coming = tl.load(x + (begin + place[:, None] + lane[None, :]), mask=there, other=0.0)
        number = value.to(kind)
        low = tl.minimum(low, number)
        high = tl.maximum(high, number)
        zeros += (number == 0.0).to(tl.int32)
        exact = number.to(tl.float64)
        total += exact
        squares += exact * exact
        minus = ((word[:, None] >> lane[None, :]) & 1) == 1
        turned += tl.where(minus, -exact, exact)
        value = coming
        word = next_word
    return turned, total, squares, low, high, zeros


@triton.jit  # type: ignore[untyped-decorator]
def _any_blocks(  # type: ignore[no-untyped-def]
    x, turns, words, half, lane, start, end, first, last, step, num_turns,
    kind: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    """Sum blocks that may be there in part, and count what is not finite."""
    turned = tl.zeros((rows, 32), tl.float64)
    total = tl.zeros((rows, 32), tl.float64)
    squares = tl.zeros((rows, 32), tl.float64)
    low = tl.full((rows, 32), float("inf"), kind)
    high = tl.full((rows, 32), float("-inf"), kind)
    nans = tl.zeros((rows, 32), tl.int32)
    ups = tl.zeros((rows, 32), tl.int32)
    downs = tl.zeros((rows, 32), tl.int32)
    zeros = tl.zeros((rows, 32), tl.int32)
    for now in range(first, last, step):
        place, word = _sources(turns, words, half, now, num_turns)
        index = tl.cast(now, tl.int64) * 16384 + place[:, None] + lane[None, :]
        there = (index >= start) & (index < end)
        number = tl.load(x + (index - start), mask=there, other=0.0).to(kind)
        nan = number != number
        up = number == float("inf")
        down = number == float("-inf")
        nans += nan.to(tl.int32)
        ups += up.to(tl.int32)
        downs += down.to(tl.int32)
        zeros += (there & (number == 0.0)).to(tl.int32)
        seen = there & ((nan | up | down) == 0)
        low = tl.minimum(low, tl.where(seen, number, float("inf")))
        high = tl.maximum(high, tl.where(seen, number, float("-inf")))
        exact = tl.where(seen, number, 0.0).to(tl.float64)
        total += exact
        squares += exact * exact
        minus = ((word[:, None] >> lane[None, :]) & 1) == 1
        turned += tl.where(minus, -exact, exact)
    return turned, total, squares, low, high, nans, ups, downs, zeros


@triton.jit  # type: ignore[untyped-decorator]
def _sum_blocks(  # type: ignore[no-untyped-def]
    x, sums, totals, turns, words, start, end, first, last, edge, edge_end, edge_step, num_turns,
    groups, kind: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    slab = tl.program_id(0)
    group = tl.program_id(1)
    half = slab * rows + tl.arange(0, rows)  # half runs of the turned block
    lane = tl.arange(0, 32)
    turned, total, squares, low, high, zeros = _whole_blocks(
        x, turns, words, half, lane, start, first + group, last, groups, num_turns, kind, rows
    )
    nans = tl.zeros((rows, 32), tl.int32)
    ups = tl.zeros((rows, 32), tl.int32)
    downs = tl.zeros((rows, 32), tl.int32)
    poison = tl.sum(tl.sum(total, 1), 0) * 0.0
    if poison != 0.0:  # NaN: an element is not finite, so look at each
        turned, total, squares, low, high, nans, ups, downs, zeros = _any_blocks(
            x, turns, words, half, lane, start, end, first + group, last, groups, num_turns,
            kind, rows,
        )  # fmt: skip
    stop = edge + (edge_end - edge) * (group == 0).to(tl.int32)  # the first group's alone
    more, added, squared, lower, higher, odd, up, down, nothing = _any_blocks(
        x, turns, words, half, lane, start, end, edge, stop, edge_step, num_turns, kind, rows
    )
    place = (half * 32)[:, None] + lane[None, :]
    tl.store(sums + group * 16384 + place, turned + more)
    at = totals + (group * (512 // rows) + slab) * 8
    tl.store(at, tl.min(tl.min(tl.minimum(low, lower), 1), 0).to(tl.float64))
    tl.store(at + 1, tl.max(tl.max(tl.maximum(high, higher), 1), 0).to(tl.float64))
    tl.store(at + 2, tl.sum(tl.sum(total + added, 1), 0))
    tl.store(at + 3, tl.sum(tl.sum(squares + squared, 1), 0))
    tl.store(at + 4, tl.sum(tl.sum(nans + odd, 1), 0).to(tl.float64))
    tl.store(at + 5, tl.sum(tl.sum(ups + up, 1), 0).to(tl.float64))
    tl.store(at + 6, tl.sum(tl.sum(downs + down, 1), 0).to(tl.float64))
    tl.store(at + 7, tl.sum(tl.sum(zeros + nothing, 1), 0).to(tl.float64))


@triton.jit  # type: ignore[untyped-decorator]
def _join_groups(sums, turned, groups, width: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0) * 64 + tl.arange(0, 64)
    group = tl.arange(0, width)
    there = (group < groups)[:, None] & (place >= 0)[None, :]
    tile = tl.load(sums + group[:, None] * 16384 + place[None, :], mask=there, other=0.0)
    tl.store(turned + place, tl.sum(tile, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _fold(  # type: ignore[no-untyped-def]
    turned, totals, bases, row, num_totals, count,
    size: tl.constexpr, head: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    bucket = tl.program_id(0) * 64 + tl.arange(0, 64)
    run = tl.arange(0, 256)
    lane = (bucket[None, :] - tl.load(bases + run)[:, None]) & (size - 1)
    tile = tl.load(turned + run[:, None] * 64 + lane, mask=lane < 64, other=0.0)
    tl.store(row + head + bucket, tl.sum(tile, 0))
    if tl.program_id(0) == 0:
        at = tl.arange(0, width)
        there = at < num_totals
        low = tl.min(tl.load(totals + at * 8, mask=there, other=float("inf")), 0)
        high = tl.max(tl.load(totals + at * 8 + 1, mask=there, other=float("-inf")), 0)
        total = tl.sum(tl.load(totals + at * 8 + 2, mask=there, other=0.0), 0)
        squares = tl.sum(tl.load(totals + at * 8 + 3, mask=there, other=0.0), 0)
        nans = tl.sum(tl.load(totals + at * 8 + 4, mask=there, other=0.0), 0)
        ups = tl.sum(tl.load(totals + at * 8 + 5, mask=there, other=0.0), 0)
        downs = tl.sum(tl.load(totals + at * 8 + 6, mask=there, other=0.0), 0)
        zeros = tl.sum(tl.load(totals + at * 8 + 7, mask=there, other=0.0), 0)
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
