"""Which of golden's elements each of the target's is, where the sides chose otherwise before.

An element is known by what it was computed from. Two elements are the same computation where
these marks are equal; they need not stand at the same place, nor in tensors of one shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 1 << 22  # marks of one value; of a larger one that cannot be told by rows nothing is known
NONE = -1  # the mark of another computation than any of golden's
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # spreads marks over 64 bits
_POSITIVE = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Counterparts:
    """For each element of the target's value the place of golden's that is the same computation.

    `of` has the target's shape, or 1 in place of the last dim where whole rows correspond; it
    counts through `grid`, which is golden's shape in the same manner. `NONE` is another
    computation.
    """

    of: Tensor
    grid: tuple[int, ...]

    @property
    def touched_rows(self) -> Tensor:
        """Which rows of the target's value have any element that is another computation."""
        odd = self.of < 0
        return odd.reshape(-1, odd.shape[-1]).any(1) if odd.ndim > 1 else odd.reshape(-1)

    @property
    def is_in_place(self) -> bool:
        """Whether what is golden's stands where golden has it."""
        if tuple(self.of.shape) != self.grid:
            return False
        return bool(((self.of < 0) | (self.of == places(self.grid))).all())

    @property
    def is_identity(self) -> bool:
        """Whether every element is golden's at the same place."""
        return tuple(self.of.shape) == self.grid and bool((self.of == places(self.grid)).all())


def all_touched(golden: tuple[int, ...], target: tuple[int, ...]) -> Counterparts:
    """Of a value of which nothing is known but that it is another computation."""
    return Counterparts(torch.full(by_rows(target), NONE), by_rows(golden))


def by_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The grid of a value of `shape` that is told by rows."""
    return (*shape[:-1], 1) if shape else ()


def places(grid: tuple[int, ...]) -> Tensor:
    """Each place of a grid, counted through."""
    return torch.arange(math.prod(grid)).reshape(grid)


def is_by_rows(marks: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether marks stand for whole rows of a value of `shape`."""
    return bool(shape) and marks.shape[-1] == 1 != shape[-1]


def spread(marks: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Marks of rows as marks of the elements of a value of `shape`."""
    if not is_by_rows(marks, shape):
        return marks
    if marks.numel() * shape[-1] > MOST:
        raise TooManyMarksError
    found = marks * shape[-1] + torch.arange(shape[-1])
    return torch.where(marks < 0, NONE, found)


class TooManyMarksError(Exception):
    """There would be more marks than are held at once."""


def mixed(marks: Tensor) -> Tensor:
    """Marks as numbers whose sums tell sets apart; another computation stays what it is."""
    words = (marks + 1) * _ODD
    words = (words ^ (words >> 29)) * _ODD
    return torch.where(marks < 0, NONE, (words ^ (words >> 32)) & _POSITIVE)


def joined(sources: list[Tensor]) -> Tensor:
    """One mark for each element from those of all that it was computed from."""
    first, *others = sources
    for number, other in enumerate(others, 1):
        odd = (first < 0) | (other < 0)
        first = torch.where(odd, NONE, (mixed(first) * 31 + mixed(other + number)) & _POSITIVE)
    return first


def grouped(marks: Tensor, dims: tuple[int, ...]) -> Tensor:
    """One mark for each group along `dims`, which are kept as 1: their elements, in order."""
    order = torch.zeros((), dtype=torch.int64)
    for dim in dims:
        sizes = [1] * marks.ndim
        sizes[dim] = marks.shape[dim]
        order = order * marks.shape[dim] + torch.arange(marks.shape[dim]).reshape(sizes)
    total = (mixed(marks) * (2 * mixed(order) + 1)).sum(dims, keepdim=True) & _POSITIVE
    return torch.where((marks < 0).sum(dims, keepdim=True) > 0, NONE, total)


def running(marks: Tensor, dim: int) -> Tensor:
    """One mark for each element along `dim` from it and those before it."""
    sizes = [1] * marks.ndim
    sizes[dim] = marks.shape[dim]
    order = torch.arange(marks.shape[dim]).reshape(sizes)
    total = (mixed(marks) * (2 * mixed(order) + 1)).cumsum(dim) & _POSITIVE
    return torch.where((marks < 0).cumsum(dim) > 0, NONE, total)


def paired(golden: Tensor, target: Tensor, known: Counterparts | None = None) -> Counterparts:
    """Each of the target's elements and the one of golden's that has the same mark.

    Of several equal ones that which stands at the same place, or else the first with the first.
    What is `known` already stays.
    """
    of = torch.full(target.shape, NONE) if known is None else known.of.clone()
    ours, theirs = golden.reshape(-1), target.reshape(-1)
    flat, free = of.reshape(-1), torch.ones(ours.numel(), dtype=torch.bool)
    free[flat[flat >= 0]] = False
    if golden.shape == target.shape:
        same = (ours == theirs) & (theirs >= 0) & (flat < 0) & free
        flat[same] = same.nonzero()[:, 0]
        free &= ~same
    left = (free & (ours >= 0)).nonzero()[:, 0]
    open_ = ((flat < 0) & (theirs >= 0)).nonzero()[:, 0]
    if left.numel() and open_.numel():
        _pair_in_order(ours, theirs, left, open_, flat)
    return Counterparts(of, tuple(golden.shape))


def _pair_in_order(ours: Tensor, theirs: Tensor, left: Tensor, open_: Tensor, flat: Tensor) -> None:
    """Pair the nth of the `open_` that has a mark with the nth of those `left` that has it."""
    left = left[ours[left].argsort(stable=True)]
    open_ = open_[theirs[open_].argsort(stable=True)]
    marks, wanted = ours[left], theirs[open_].contiguous()
    nth = torch.arange(wanted.numel()) - torch.searchsorted(wanted, wanted)
    place = torch.searchsorted(marks, wanted) + nth
    inside = place < marks.numel()
    place = place.clamp(max=marks.numel() - 1)
    found = inside & (marks[place] == wanted)
    flat[open_[found]] = left[place[found]]
