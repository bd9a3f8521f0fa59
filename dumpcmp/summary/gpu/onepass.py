"""The one pass over a CUDA tensor that a Summary needs, as Triton kernels; see `launches`."""

from importlib import import_module
from typing import Any

from dumpcmp.summary.gpu.gaps import Runs
from dumpcmp.summary.gpu.halves import lies, whole_pairs

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")


@triton.jit
def _sources(turn, words, half):  # type: ignore[no-untyped-def]
    """Of each half run of a turned block: where it lies in the block, and its signs, inverted."""
    run = ((half >> 1) - turn) & 255
    word = tl.load(words + 2 * (run + ((turn >> 8) & 255)) + (half & 1))
    return run * 64 + (half & 1) * 32, word ^ -(turn >> 16)


@triton.jit  # type: ignore[untyped-decorator]
def _load(  # type: ignore[no-untyped-def]
    x, turn, words, half, lane, start, block, last,
    length, num_near, num_mid, far, mid, near, dims: tl.constexpr, vector: tl.constexpr,
):  # fmt: skip
    """The elements of a block before `last`, and their signs."""
    place, word = _sources(turn, words, half)
    begin = tl.cast(block, tl.int64) * 16384 - start
    if dims:
        place = lies(begin + place, length, num_near, num_mid, far, mid, near, dims, vector)
        begin = begin * 0
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
    length, num_near, num_mid, far, mid, near,
    kind: tl.constexpr, rows: tl.constexpr, vector: tl.constexpr, dims: tl.constexpr,
):  # fmt: skip
    """Sum blocks that are there whole and finite; the next two are loaded while one is summed."""
    turned = tl.zeros((rows, 32), tl.float64)
    total = tl.zeros((rows, 32 // vector), tl.float64)
    squares = tl.zeros((rows, 32 // vector), tl.float64)
    low = tl.full((rows, 32 // vector), float("inf"), kind)
    high = tl.full((rows, 32 // vector), float("-inf"), kind)
    zeros = tl.zeros((rows, 32 // vector), tl.int32)
    value, word = _load(x, tl.load(turns + tl.minimum(block, last)), words, half, lane, start,
                        block, last,
                        length, num_near, num_mid, far, mid, near, dims, vector)  # fmt: skip
    after = block + step
    coming, next_word = _load(x, tl.load(turns + tl.minimum(after, last)), words, half, lane,
                              start, after, last,
                              length, num_near, num_mid, far, mid, near, dims, vector)  # fmt: skip
    turn = tl.load(turns + tl.minimum(after + step, last))
    for now in range(block, last, step):
        after = now + 2 * step
        later, later_word = _load(
            x, turn, words, half, lane, start, after, last,
            length, num_near, num_mid, far, mid, near, dims, vector,
        )  # fmt: skip
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
def _any_units(  # type: ignore[no-untyped-def]
    x, turns, words, half, sub, lane, start, end, first, last, step,
    turned, total, squares, low, high, nans, ups, downs, zeros,
    length, num_near, num_mid, far, mid, near,
    kind: tl.constexpr, rows: tl.constexpr, vector: tl.constexpr, blocks: tl.constexpr,
    dims: tl.constexpr,
):  # fmt: skip
    """Add units that may be there in part, and count what is not finite."""
    for now in range(first, last, step):
        block = now * blocks + sub
        place, word = _sources(tl.load(turns + block), words, half)
        index = (block.to(tl.int64) * 16384 + place)[:, None] + lane[None, :]
        there = (index >= start) & (index < end)
        if dims:
            first_of = block.to(tl.int64) * 16384 + place
            begin = lies(first_of, length, num_near, num_mid, far, mid, near, dims, vector)
            number = tl.load(x + (begin[:, None] + lane[None, :]), mask=there, other=0.0).to(kind)
        else:
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


@triton.jit(do_not_specialize=Runs._fields[1:])  # type: ignore[untyped-decorator]
def sum_units(  # type: ignore[no-untyped-def]
    x, sums, totals, turns, words, start, end, first, last, edge, edge_end, edge_step, groups,
    length, num_near, num_mid, far, mid, near,
    kind: tl.constexpr, vector: tl.constexpr, blocks: tl.constexpr, short: tl.constexpr,
    dims: tl.constexpr,
):  # fmt: skip
    """Sum one slab of the turned blocks of one group of units, each of so many `blocks`.

    `short` names a 16-bit float whose pairs are loaded together: 1 is bfloat16, 2 float16. With
    gaps `start` is 0, and the elements lie in Runs of so many `dims`.
    """
    slab = tl.program_id(0)
    group = tl.program_id(1)
    rows: tl.constexpr = 64 * blocks
    row = tl.arange(0, rows)
    half = slab * 64 + (row & 63)  # half runs of the turned block
    sub = row >> 6  # the block of the unit that the row is of
    lane = tl.arange(0, 32)
    if short:
        turned, total, squares, low, high, zeros = whole_pairs(
            x, turns, words, half, sub, start, first + group, last, groups,
            length, num_near, num_mid, far, mid, near, short == 1, rows, blocks, dims,
        )  # fmt: skip
    else:
        turned, total, squares, low, high, zeros = _whole_blocks(
            x, turns, words, half, lane, start, first + group, last, groups,
            length, num_near, num_mid, far, mid, near, kind, rows, vector, dims,
        )  # fmt: skip
    nans = tl.zeros((rows, 32 // vector), tl.int32)
    ups = tl.zeros((rows, 32 // vector), tl.int32)
    downs = tl.zeros((rows, 32 // vector), tl.int32)
    poison = tl.sum(tl.sum(total, 1), 0) * 0.0
    if poison != 0.0:  # NaN: an element is not finite, so look at each
        none = tl.zeros((rows, 32 // vector), tl.int32)
        turned, total, squares, low, high, nans, ups, downs, zeros = _any_units(
            x, turns, words, half, sub, lane, start, end, first + group, last, groups,
            tl.zeros((rows, 32), tl.float64), none.to(tl.float64), none.to(tl.float64),
            tl.full((rows, 32 // vector), float("inf"), kind),
            tl.full((rows, 32 // vector), float("-inf"), kind),
            none, none, none, none, length, num_near, num_mid, far, mid, near,
            kind, rows, vector, blocks, dims,
        )  # fmt: skip
    stop = edge + (edge_end - edge) * (group == 0).to(tl.int32)  # the first group's alone
    turned, total, squares, low, high, nans, ups, downs, zeros = _any_units(
        x, turns, words, half, sub, lane, start, end, edge, stop, edge_step,
        turned, total, squares, low, high, nans, ups, downs, zeros,
        length, num_near, num_mid, far, mid, near, kind, rows, vector, blocks, dims,
    )  # fmt: skip
    place = ((slab * 64 + tl.arange(0, 64)) * 32)[:, None] + lane[None, :]
    tl.store(sums + group * 16384 + place, tl.sum(tl.reshape(turned, (blocks, 64, 32)), 0))
    if (slab == 0) & (group == 0):  # for `finish`, which makes rows of many tensors at once
        tl.store(totals, tl.cast(end - start, tl.float64))
        tl.store(totals + 1, tl.cast(groups, tl.float64))
    at = totals + 8 + (group * 8 + slab) * 8
    tl.store(at, tl.min(tl.min(low, 1), 0).to(tl.float64))
    tl.store(at + 1, tl.max(tl.max(high, 1), 0).to(tl.float64))
    tl.store(at + 2, tl.sum(tl.sum(total, 1), 0))
    tl.store(at + 3, tl.sum(tl.sum(squares, 1), 0))
    tl.store(at + 4, tl.sum(tl.sum(nans, 1), 0).to(tl.float64))
    tl.store(at + 5, tl.sum(tl.sum(ups, 1), 0).to(tl.float64))
    tl.store(at + 6, tl.sum(tl.sum(downs, 1), 0).to(tl.float64))
    tl.store(at + 7, tl.sum(tl.sum(zeros, 1), 0).to(tl.float64))


@triton.jit  # type: ignore[untyped-decorator]
def finish(  # type: ignore[no-untyped-def]
    sums, totals, places, row, partials,
    head: tl.constexpr, size: tl.constexpr, slots: tl.constexpr, most: tl.constexpr,
    many: tl.constexpr, most_partials: tl.constexpr, checksum: tl.constexpr,
):  # fmt: skip
    """Add groups and runs up to eight buckets a program; the first makes the leading numbers.

    The second dim of the grid are rows, of tensors one after another in the scratch memory, each
    of which has room for `most` groups of eight programs; `many` is a power of two not below their
    number. Among the leading numbers are the halves of the checksum,
    where there is one. `places` has for each program and bucket what goes there of a turned block,
    and -1 behind it.
    """
    program = tl.program_id(0)
    number = tl.program_id(1)
    totals += number * (most * 64 + 8)
    row += number * (head + size)
    if program == 0:
        groups = tl.load(totals + 1).to(tl.int32)
        _lead(totals + 8, row, groups * 8, tl.load(totals), many)
        if checksum:
            partials += number * (most_partials + 8)
            lane = tl.arange(0, most_partials)
            there = lane < tl.load(partials + most_partials)
            found = tl.sum(tl.load(partials + lane, mask=there, other=0), 0)
            tl.store(row + 12, ((found >> 32) & 0xFFFFFFFF).to(tl.float64))
            tl.store(row + 13, (found & 0xFFFFFFFF).to(tl.float64))
            tl.store(row + 14 + tl.arange(0, 2), tl.full((2,), 0.0, tl.float64))
        else:
            tl.store(row + 12 + tl.arange(0, 4), tl.full((4,), -1.0, tl.float64))
    else:
        sums += tl.cast(number, tl.int64) * (most * 16384)
        groups = tl.load(totals + 1).to(tl.int32)
        slot = tl.arange(0, slots)[:, None] * 8 + tl.arange(0, 8)[None, :]
        place = tl.load(places + (program - 1) * slots * 8 + slot)[None, :, :]
        tile = tl.zeros((16, slots, 8), tl.float64)
        for first in range(0, groups, 16):
            group = (first + tl.arange(0, 16))[:, None, None]
            mask = (place >= 0) & (group < groups)
            tile += tl.load(sums + group * 16384 + place, mask=mask, other=0.0)
        bucket = (program - 1) * 8 + tl.arange(0, 8)
        tl.store(row + head + bucket, tl.sum(tl.sum(tile, 0), 0))


@triton.jit  # type: ignore[untyped-decorator]
def _lead(totals, row, num_totals, count, many: tl.constexpr):  # type: ignore[no-untyped-def]
    """The leading numbers of a packed row of `count` elements from the totals of all programs."""
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
    finite = count - nans - ups - downs
    none = total * 0.0 / finite  # NaN where nothing is finite, else 0
    mean = total / finite
    variance = squares / finite - mean * mean
    tl.store(row, count)
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


@triton.jit
def _entry(numbers, places, place):  # type: ignore[no-untyped-def]
    return tl.sum(tl.where(places == place, numbers, 0.0), 0)
