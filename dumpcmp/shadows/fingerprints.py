"""A few sums of a tensor in float64, by which the same quantity is known again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

# Two float64 runs of one computation in another order part by about 2**-52 an op. 1e-9 leaves room
# for a million of them, and lies below the rounding of float32 (6e-8) that two programs show which
# are not the same.
SAME = 1e-9
# A program whose own numbers are rounded, such as the float32 attributes of an exported graph, is
# known up to that: each number by half a unit, and a value between two that match by some of them.
_NUM_ROUNDED = 16
_MOST_APART = 2.0**-7  # as of float16: by what shorter numbers round, anything is the same
_ROUNDED_TO = ("float32", "float16", "bfloat16")
_within: ContextVar[float] = ContextVar("_within", default=SAME)
# A mask's filling: elements that are one number but for what was added to it, far above all others.
_ONE_NUMBER, _FAR = 2.5e-3, 1e-3
# What a sum in float64 rounds, of terms as large as a few elements are: 2**9 roundings of it.
_SUMMED = 2.0**-43
_COMPUTED = 1e4  # a filling above it is given, and nothing beside it is rounded as it is
_BLOCK = 1 << 16
T = TypeVar("T")


def same() -> float:
    """How far, of its size, one quantity may be apart in two programs."""
    return _within.get()


@contextmanager
def numbers_rounded_to(dtypes: Iterable[str]) -> Iterator[None]:
    """Know quantities again while the block runs of programs whose numbers are in these dtypes.

    What an archive says that is none of them changes nothing.
    """
    names = [name for name in dtypes if name in _ROUNDED_TO]
    rounded = [torch.finfo(getattr(torch, name)).eps / 2 for name in names]
    before = _within.set(min(_MOST_APART, max([SAME, *(_NUM_ROUNDED * unit for unit in rounded)])))
    try:
        yield
    finally:
        _within.reset(before)


class Fingerprint(NamedTuple):
    """Sums over the elements: three that any order gives, and one that tells the order.

    A mask's filling would hide all else in them: it is not summed, but stands beside.
    """

    numel: int  # of finite elements that are no filling
    size: float  # the sum of absolute values, which the others are measured by
    total: float
    squares: float  # over the largest element
    ordered: float  # with a random weight for each place
    filling: float = 0.0  # the sum of what a mask puts where it hides
    filled: float = 0.0  # where it does: the sum of these places' weights

    def is_same(self, other: Fingerprint) -> bool:
        """Whether both have the same elements in the same order."""
        return (
            self.is_permuted(other)
            and _near(self.ordered, other.ordered, self, other)
            and abs(self.filled - other.filled) <= same()
        )

    def is_permuted(self, other: Fingerprint) -> bool:
        """Whether both have the same elements, in whatever order."""
        return (
            self.numel == other.numel
            and _near(self.size, other.size, self, other)
            and _near(self.total, other.total, self, other)
            and _near(self.squares, other.squares, self, other)
            and abs(self.filling - other.filling) <= same() * abs(self.filling)
        )


def _near(a: float, b: float, one: Fingerprint, other: Fingerprint) -> bool:
    beside = _rounded_beside(one.filling) * one.numel
    return abs(a - b) <= same() * max(one.size, other.size) + beside


def _rounded_beside(filling: float) -> float:
    """What elements may be off that were computed together with ones as large as `filling`."""
    return _SUMMED * min(abs(filling), _COMPUTED)


def fingerprint(tensor: Tensor) -> Fingerprint:
    """The sums of `tensor`; elements that are not finite count as nothing, and are not counted."""
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat.to(torch.complex128)).reshape(-1)
    flat = flat.to(torch.float64)
    weights = weights_of(flat.numel()).to(flat.device)
    finite = torch.isfinite(flat)
    numel = int(finite.sum())
    if numel < flat.numel():
        flat = torch.where(finite, flat, 0.0)
    sizes = flat.abs()
    filling = filled = 0.0
    if (found := _filling(sizes)) is not None:
        filling, filled = float(flat[found].sum()), float(weights[found].sum())
        numel -= int(found.sum())
        flat = torch.where(found, 0.0, flat)
        sizes = flat.abs()
    largest = float(sizes.max()) if flat.numel() else 0.0
    squares = float(flat.dot(flat)) / largest if largest else 0.0
    ordered = float(flat.dot(weights))
    size, total = float(sizes.sum()), float(flat.sum())
    return Fingerprint(numel, size, total, squares, ordered, filling, filled)


def _filling(sizes: Tensor) -> Tensor | None:
    """Which elements are what a mask puts where it hides; None where there is no such number."""
    if sizes.numel() < 3 or not (largest := float(sizes.max())):
        return None
    found = sizes >= largest * (1 - _ONE_NUMBER)
    if not 1 < int(found.sum()) < sizes.numel():
        return None
    return found if float(sizes[~found].max()) <= largest * _FAR else None


def weights_of(count: int) -> Tensor:
    """A weight for each of so many places, always the same."""
    if count <= _BLOCK:  # of thousands of small tensors, none may take a block of its own
        return _block(0)[:count]
    return torch.cat([_block(number) for number in range(-(-count // _BLOCK))])[:count]


@cache
def _block(number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number + 1)
    return torch.rand(_BLOCK, generator=generator, dtype=torch.float64) - 0.5


def is_telling(tensor: Tensor) -> bool:
    """Whether a tensor is evidence where it is found again: zeros, ones and ramps are anywhere."""
    if tensor.numel() < 2:
        return False
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    flat = tensor.reshape(-1)
    if tensor.is_complex():
        flat = flat.real
    return len(set(flat[:_BLOCK].tolist())) > 3


def same_elements(one: Tensor, other: Tensor) -> bool:
    """Whether both have one shape, and each element is the same quantity."""
    if one.shape != other.shape:
        return False
    if not one.numel():
        return True
    if one.is_complex() or other.is_complex():
        one, other = (torch.view_as_real(t.to(torch.complex128)) for t in (one, other))
    one, other = one.detach().to(torch.float64), other.detach().to(torch.float64)
    known = torch.isfinite(one)
    if not torch.equal(known, torch.isfinite(other)):
        return False
    if not torch.equal(one[~known], other[~known]) and not bool(
        ((one[~known] == other[~known]) | (one[~known].isnan() & other[~known].isnan())).all()
    ):
        return False
    one, other = one[known], other[known]
    if not one.numel():
        return True
    sizes = other.abs()
    filling = _filling(sizes)
    seen = sizes if filling is None else sizes[~filling]
    room = same() * (sizes + _usual(seen)) + _SUMMED * float(seen.square().mean().sqrt())
    room += 0.0 if filling is None else _rounded_beside(float(sizes.max()))
    return bool(((one - other).abs() <= room).all())


def _usual(sizes: Tensor) -> float:
    """The size of most elements."""
    return float(sizes[:: max(1, sizes.numel() // _BLOCK)].median())


@dataclass(eq=False)
class PrintIndex(Generic[T]):
    """Things by their fingerprints, found by nearly the same one."""

    _by_numel: dict[int, tuple[list[float], list[tuple[Fingerprint, T]]]] = field(
        default_factory=dict
    )

    def add(self, found: Fingerprint, thing: T) -> None:
        sizes, things = self._by_numel.setdefault(found.numel, ([], []))
        at = bisect_left(sizes, found.size)
        sizes.insert(at, found.size)
        things.insert(at, (found, thing))

    def near(self, wanted: Fingerprint) -> Iterator[tuple[Fingerprint, T]]:
        """What has the same elements, in whatever order."""
        sizes, things = self._by_numel.get(wanted.numel, ([], []))
        at = bisect_left(sizes, wanted.size * (1 - 2 * same()))
        while at < len(sizes) and sizes[at] <= wanted.size * (1 + 2 * same()):
            if wanted.is_permuted(things[at][0]):
                yield things[at]
            at += 1
