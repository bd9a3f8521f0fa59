"""The one pass over a CUDA tensor that a Summary needs, as a Triton kernel."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dumpcmp.measure.device import Tables

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

_SLAB = 2048  # elements of a turned block that one program sums
_SLABS = 16384 // _SLAB


def row_of(flat: Tensor, size: int, head: int, tables: "Tables") -> Tensor:
    """The packed summary of a whole tensor with one sketch of `size`, in three launches."""
    sums, totals = _partial(flat, 0, tables)
    turned = torch.empty(16384, dtype=torch.float64, device=flat.device)
    row = torch.empty(head + size, dtype=torch.float64, device=flat.device)
    groups = sums.shape[0]
    with torch.cuda.device(flat.device):
        _join_groups[(64,)](sums, turned, groups, width=triton.next_power_of_2(groups), num_warps=4)
        _fold[(size // 64,)](
            turned, totals, tables.bases, row, groups * _SLABS, flat.numel(), size=size, head=head,
            width=triton.next_power_of_2(groups * _SLABS), num_warps=8,
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
    first, last = start // 16384, -(-(start + flat.numel()) // 16384)
    groups = min(last - first, _num_groups(flat.device))
    sums = torch.empty(groups, 16384, dtype=torch.float64, device=flat.device)
    totals = torch.empty(groups * _SLABS, 8, dtype=torch.float64, device=flat.device)
    turns = tables.turns(last)
    kind = tl.float64 if flat.dtype is torch.float64 else tl.float32
    with torch.cuda.device(flat.device):
        _sum_blocks[(_SLABS, groups)](
            flat, sums, totals, turns, tables.half_words, start, start + flat.numel(), first, last,
            turns.shape[1], groups, kind=kind, slab_size=_SLAB, num_warps=8,
        )  # fmt: skip
    return sums, totals


def _num_groups(device: torch.device) -> int:
    """Enough programs to fill the device twice."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, 2 * processors // _SLABS)


@triton.jit  # type: ignore[untyped-decorator]
def _sum_blocks(  # type: ignore[no-untyped-def]
    x, sums, totals, turns, words, start, end, first, last, num_turns, groups,
    kind: tl.constexpr, slab_size: tl.constexpr,
):  # fmt: skip
    slab = tl.program_id(0)
    group = tl.program_id(1)
    half = slab * (slab_size // 32) + tl.arange(0, slab_size // 32)  # half runs of the turned block
    lane = tl.arange(0, 32)
    low = tl.full((slab_size // 32, 32), float("inf"), kind)
    high = tl.full((slab_size // 32, 32), float("-inf"), kind)
    turned = tl.zeros((slab_size // 32, 32), tl.float64)
    total = tl.zeros((slab_size // 32, 32), tl.float64)
    squares = tl.zeros((slab_size // 32, 32), tl.float64)
    nans = tl.zeros((slab_size // 32, 32), tl.int32)
    ups = tl.zeros((slab_size // 32, 32), tl.int32)
    downs = tl.zeros((slab_size // 32, 32), tl.int32)
    zeros = tl.zeros((slab_size // 32, 32), tl.int32)
    for block in range(first + group, last, groups):
        rotation = tl.load(turns + block)
        offset = tl.load(turns + num_turns + block)
        common = tl.load(turns + 2 * num_turns + block)
        run = ((half >> 1) - rotation) & 255
        word = tl.load(words + 2 * (run + offset) + (half & 1))
        index = (
            tl.cast(block, tl.int64) * 16384 + (run * 64 + (half & 1) * 32)[:, None] + lane[None, :]
        )
        there = (index >= start) & (index < end)
        number = tl.load(x + (index - start), mask=there, other=0.0).to(kind)
        nan = number != number
        up = number == float("inf")
        down = number == float("-inf")
        odd = nan | up | down
        nans += nan.to(tl.int32)
        ups += up.to(tl.int32)
        downs += down.to(tl.int32)
        zeros += (there & (number == 0)).to(tl.int32)
        seen = there & (odd == 0)
        low = tl.minimum(low, tl.where(seen, number, float("inf")))
        high = tl.maximum(high, tl.where(seen, number, float("-inf")))
        exact = tl.where(seen, number, 0.0).to(tl.float64)
        total += exact
        squares += exact * exact
        minus = ((word[:, None] >> lane[None, :]) & 1) == (common > 0).to(tl.int32)
        turned += tl.where(minus, -exact, exact)
    place = (half * 32)[:, None] + lane[None, :]
    tl.store(sums + group * 16384 + place, turned)
    at = totals + (group * (16384 // slab_size) + slab) * 8
    tl.store(at, tl.min(tl.min(low, 1), 0).to(tl.float64))
    tl.store(at + 1, tl.max(tl.max(high, 1), 0).to(tl.float64))
    tl.store(at + 2, tl.sum(tl.sum(total, 1), 0))
    tl.store(at + 3, tl.sum(tl.sum(squares, 1), 0))
    tl.store(at + 4, tl.sum(tl.sum(nans, 1), 0).to(tl.float64))
    tl.store(at + 5, tl.sum(tl.sum(ups, 1), 0).to(tl.float64))
    tl.store(at + 6, tl.sum(tl.sum(downs, 1), 0).to(tl.float64))
    tl.store(at + 7, tl.sum(tl.sum(zeros, 1), 0).to(tl.float64))


@triton.jit  # type: ignore[untyped-decorator]
def _join_groups(sums, turned, groups, width: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0) * 256 + tl.arange(0, 256)
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
        tl.store(row, tl.cast(count, tl.float64))
        tl.store(row + 1, nans)
        tl.store(row + 2, ups)
        tl.store(row + 3, downs)
        tl.store(row + 4, zeros)
        tl.store(row + 5, low + none)
        tl.store(row + 6, high + none)
        tl.store(row + 7, mean)
        tl.store(row + 8, tl.sqrt(tl.maximum(squares / finite - mean * mean, none)))
        tl.store(row + 9, tl.sqrt(squares))
        tl.store(row + 10, total)
        tl.store(row + 11, squares)
        tl.store(row + 12 + tl.arange(0, 4), tl.full((4,), -1.0, tl.float64))
