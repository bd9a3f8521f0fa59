"""The pass over CUDA tensors of 16-bit floats, two elements at a time, for `onepass`."""

from importlib import import_module
from typing import Any

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")


@triton.jit  # type: ignore[untyped-decorator]
def lies(  # type: ignore[no-untyped-def]
    place, length, num_near, num_mid, far, mid, near, dims: tl.constexpr, aligned: tl.constexpr
):  # fmt: skip
    """Where elements lie of which each `place` is the first of 32, in Runs of so many `dims`."""
    at = place.to(tl.uint32)
    run = at // tl.cast(length, tl.uint32)
    offset = (at - run * tl.cast(length, tl.uint32)).to(tl.int64)
    if dims == 1:
        offset += run.to(tl.int64) * near
    else:
        row = run // tl.cast(num_near, tl.uint32)
        offset += (run - row * tl.cast(num_near, tl.uint32)).to(tl.int64) * near
        if dims == 2:
            offset += row.to(tl.int64) * mid
        else:
            sheet = row // tl.cast(num_mid, tl.uint32)
            offset += (row - sheet * tl.cast(num_mid, tl.uint32)).to(tl.int64) * mid
            offset += sheet.to(tl.int64) * far
    return tl.multiple_of(offset, aligned)


@triton.jit
def _least(one, two):  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise(
        "min.bf16x2 $0, $1, $2;", "=r,r,r", [one, two], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _most(one, two):  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise(
        "max.bf16x2 $0, $1, $2;", "=r,r,r", [one, two], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _least_half(one, two):  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise(
        "min.f16x2 $0, $1, $2;", "=r,r,r", [one, two], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _most_half(one, two):  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise(
        "max.f16x2 $0, $1, $2;", "=r,r,r", [one, two], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit  # type: ignore[untyped-decorator]
def _zeros(pairs, brain: tl.constexpr):  # type: ignore[no-untyped-def]
    """The number 1 of the pair's own dtype in place of each zero, else 0."""
    if brain:
        ones = tl.inline_asm_elementwise(
            "{ .reg .b32 z; mov.b32 z, 0; set.eq.bf16x2.bf16x2 $0, $1, z; }", "=r,r", [pairs],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        ones = tl.inline_asm_elementwise(
            "{ .reg .b32 z; mov.b32 z, 0; set.eq.f16x2.f16x2 $0, $1, z; }", "=r,r", [pairs],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return ones


@triton.jit  # type: ignore[untyped-decorator]
def _parted(pairs, brain: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first and the second of each pair, as float32."""
    if brain:
        first = (pairs << 16).to(tl.float32, bitcast=True)
        second = (pairs & -65536).to(tl.float32, bitcast=True)
    else:
        first = (pairs & 65535).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        second = (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return first, second


@triton.jit  # type: ignore[untyped-decorator]
def _load(  # type: ignore[no-untyped-def]
    x, turn, words, half, quarter, pair, start, block, there,
    length, num_near, num_mid, far, mid, near, dims: tl.constexpr,
):  # fmt: skip
    """The pairs of each half run of a turned block, and its signs."""
    run = ((half >> 1) - turn) & 255
    word = tl.load(words + 2 * (run + ((turn >> 8) & 255)) + (half & 1)) ^ -(turn >> 16)
    if dims:
        place = tl.cast(block, tl.int64) * 16384 + run * 64 + (half & 1) * 32
        begin = lies(place, length, num_near, num_mid, far, mid, near, dims, 8) >> 1
        begin = tl.multiple_of(begin, 4)
    else:
        begin = ((tl.cast(block, tl.int64) * 16384 - start) >> 1) + run * 32 + (half & 1) * 16
    place = begin[:, None, None] + (4 * quarter)[None, :, None] + pair[None, None, :]
    return tl.load(x + place, mask=there), word


@triton.jit
def _signed(exact, word, left):  # type: ignore[no-untyped-def]
    minus = (word[:, :, None] << left[None, None, :]) & -2147483648
    return (exact.to(tl.int64, bitcast=True) ^ (minus.to(tl.int64) << 32)).to(
        tl.float64, bitcast=True
    )


@triton.jit  # type: ignore[untyped-decorator]
def _add(  # type: ignore[no-untyped-def]
    pairs, word, quarter, pair, first, second, total, squares, low, high, zeros,
    brain: tl.constexpr,
):  # fmt: skip
    if brain:
        low = _least(low, tl.reduce(pairs, 2, _least))
        high = _most(high, tl.reduce(pairs, 2, _most))
    else:
        low = _least_half(low, tl.reduce(pairs, 2, _least_half))
        high = _most_half(high, tl.reduce(pairs, 2, _most_half))
    ones = tl.sum(_zeros(pairs, brain), 2)  # four ones do not overflow their 16 bits
    zeros += ((ones >> 7) & 511) + ((ones >> 23) & 511)
    one, two = _parted(pairs, brain)
    one = one.to(tl.float64)
    two = two.to(tl.float64)
    total += tl.sum(one + two, 2)
    squares = tl.fma(one, one, squares)
    squares = tl.fma(two, two, squares)
    near = word[:, None] << (24 - 8 * quarter)[None, :]  # the thread's own eight signs lead
    first += _signed(one, near, 7 - 2 * pair)
    second += _signed(two, near, 6 - 2 * pair)
    return first, second, total, squares, low, high, zeros


@triton.jit  # type: ignore[untyped-decorator]
def whole_pairs(  # type: ignore[no-untyped-def]
    x, turns, words, half, sub, start, unit, last, groups,
    length, num_near, num_mid, far, mid, near,
    brain: tl.constexpr, rows: tl.constexpr, blocks: tl.constexpr, dims: tl.constexpr,
):  # fmt: skip
    """Sum units that are there whole and finite; the next two are loaded while two are summed."""
    x = x.to(tl.pointer_type(tl.int32), bitcast=True)
    quarter = tl.arange(0, 4)
    pair = tl.arange(0, 4)
    first = tl.zeros((rows, 4, 4), tl.float64)
    second = tl.zeros((rows, 4, 4), tl.float64)
    squares = tl.zeros((rows, 4, 4), tl.float64)
    total = tl.zeros((rows, 4), tl.float64)
    zeros = tl.zeros((rows, 4), tl.int32)
    low = tl.full((rows, 4), 0x7F807F80 if brain else 0x7C007C00, tl.int32)  # infinities
    high = tl.full((rows, 4), -8323200 if brain else -67044352, tl.int32)
    step = groups * blocks
    end = last * blocks  # which has a turn, too: without a whole unit it is the first
    at = unit * blocks + sub
    pairs1, word1 = _load(x, tl.load(turns + tl.minimum(at, end)), words, half, quarter, pair,
                          start, at, unit < last,
                          length, num_near, num_mid, far, mid, near, dims)  # fmt: skip
    pairs2, word2 = _load(x, tl.load(turns + tl.minimum(at + step, end)), words, half, quarter,
                          pair, start, at + step, unit + groups < last,
                          length, num_near, num_mid, far, mid, near, dims)  # fmt: skip
    turn1 = tl.load(turns + tl.minimum(at + 2 * step, end))
    turn2 = tl.load(turns + tl.minimum(at + 3 * step, end))
    for now in range(unit, last - groups, 2 * groups):
        at = now * blocks + sub
        first, second, total, squares, low, high, zeros = _add(
            pairs1, word1, quarter, pair, first, second, total, squares, low, high, zeros, brain
        )
        pairs1, word1 = _load(x, turn1, words, half, quarter, pair, start, at + 2 * step,
                              now + 2 * groups < last,
                              length, num_near, num_mid, far, mid, near, dims)  # fmt: skip
        turn1 = tl.load(turns + tl.minimum(at + 4 * step, end))
        first, second, total, squares, low, high, zeros = _add(
            pairs2, word2, quarter, pair, first, second, total, squares, low, high, zeros, brain
        )
        pairs2, word2 = _load(x, turn2, words, half, quarter, pair, start, at + 3 * step,
                              now + 3 * groups < last,
                              length, num_near, num_mid, far, mid, near, dims)  # fmt: skip
        turn2 = tl.load(turns + tl.minimum(at + 5 * step, end))
    if (unit < last) & (((last - 1 - unit) // groups) % 2 == 0):  # an odd number of units
        first, second, total, squares, low, high, zeros = _add(
            pairs1, word1, quarter, pair, first, second, total, squares, low, high, zeros, brain
        )
    one, two = _parted(low, brain)
    least = tl.minimum(one, two)
    one, two = _parted(high, brain)
    most = tl.maximum(one, two)
    turned = tl.reshape(tl.join(first, second), (rows, 32))
    return turned, total, tl.sum(squares, 2), least, most, zeros // (127 if brain else 120)
