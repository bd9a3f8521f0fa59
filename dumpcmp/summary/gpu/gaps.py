"""How a tensor with gaps lies in memory, so that kernels read it without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LEAST = 32  # elements that kernels read from one run; the length of each is a multiple
ALIGNED = 16  # bytes, the most that a thread loads at once
_MOST_DIMS = 3
_MOST_ELEMENTS = 1 << 31


class Runs(NamedTuple):
    """A tensor as runs of elements that lie one after another, in at most three dims."""

    num_dims: int = 0  # none: it has no gaps, and the rest says nothing
    length: int = 1
    num_near: int = 1  # runs along the last dim, `near` elements apart
    num_mid: int = 1  # and along the one before it, `mid` elements apart
    far: int = 0
    mid: int = 0
    near: int = 0


def runs_of(shape: Sequence[int], stride: Sequence[int], itemsize: int) -> Runs | None:
    """The runs of a tensor that has gaps; None where kernels cannot read it so."""
    dims: list[tuple[int, int]] = []
    count = 1
    for size, step in zip(shape, stride, strict=True):
        count *= size
        if dims and dims[-1][1] == size * step:  # it goes on where the one before it ends
            dims[-1] = (dims[-1][0] * size, step)
        elif size != 1:
            dims.append((size, step))
    if not 1 < len(dims) <= _MOST_DIMS + 1 or not 0 < count < _MOST_ELEMENTS:
        return None
    *outer, (length, step) = dims
    if step != 1 or length % LEAST or any(step * itemsize % ALIGNED for _, step in outer):
        return None
    (_, far), (num_mid, mid), (num_near, near) = [*[(1, 0)] * (_MOST_DIMS - len(outer)), *outer]
    return Runs(len(outer), length, num_near, num_mid, far, mid, near)
