"""The pass over a CUDA tensor that its checksum needs, as a Triton kernel; see `launches`."""

from importlib import import_module
from typing import Any

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")


@triton.jit  # type: ignore[untyped-decorator]
def add_pages(  # type: ignore[no-untyped-def]
    x, lines, pages, partials, count, num_pages, bits: tl.constexpr, most: tl.constexpr
):
    """Add every so manieth page of words, each times its factors, in 64 bits that wrap.

    A lane has one factor in all pages, so that it is multiplied in at the end. Integers that wrap
    add up to the same in any order. How many programs there were lies behind the `most` of them.
    """
    lane = tl.arange(0, 4096)
    total = tl.zeros((4096,), tl.int64)
    for page in range(tl.program_id(0), num_pages, tl.num_programs(0)):
        place = tl.cast(page, tl.int64) * 4096 + lane
        word = tl.load(x + place, mask=place < count, other=0).to(tl.int64)
        if bits == 64:
            word = word ^ ((word >> 32) & 0xFFFFFFFF) ^ ((word >> 48) & 0xFFFF)
        else:
            word = word & ((1 << bits) - 1)
        total += word * tl.load(pages + page)
    tl.store(partials + tl.program_id(0), tl.sum(total * tl.load(lines + lane), 0))
    if tl.program_id(0) == 0:
        tl.store(partials + most, tl.num_programs(0).to(tl.int64))
