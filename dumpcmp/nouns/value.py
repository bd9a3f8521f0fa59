"""A tensor's value outside torch: raw bits in a numpy array, and the dtype they stand in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.dtypes import Dtype, Kind, dtype_named, widen

if TYPE_CHECKING:
    import torch

_BYTES = 1 << 20  # that are held against each other at once

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """The elements of one tensor. `bits` has the tensor's shape and its dtype's storage type."""

    dtype: Dtype
    bits: NDArray[np.generic]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bits.shape

    @property
    def numel(self) -> int:
        return self.bits.size

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes

    def same_bits(self, other: Value) -> bool:
        """Whether both are the same to the bit, dtype and shape too. Stops where they are not."""
        if self.dtype != other.dtype or self.shape != other.shape:
            return False
        if self.bits is other.bits:
            return True
        a, b = (np.ascontiguousarray(v.bits).reshape(-1).view(np.uint8) for v in (self, other))
        blocks = (slice(i, i + _BYTES) for i in range(0, a.size, _BYTES))
        return all(bool((_words(a[block]) == _words(b[block])).all()) for block in blocks)

    def line(self) -> Value:
        """The elements one after another; a complex one is two, its real and imaginary part."""
        flat = np.ascontiguousarray(self.bits).reshape(-1)
        if self.dtype.kind is not Kind.COMPLEX:
            return Value(self.dtype, flat)
        return Value(dtype_named(flat.real.dtype.name), flat.view(flat.real.dtype))

    def numbers(self) -> NDArray[Any]:
        """The elements as numbers that numpy computes with (see `widen`)."""
        return widen(self.bits, self.dtype)


def _words(octets: NDArray[np.uint8]) -> NDArray[np.unsignedinteger]:
    return octets.view(np.uint64) if octets.size % 8 == 0 else octets


@dataclass(frozen=True, slots=True, eq=False)
class Portion:
    """What a shard is of its whole: for each dim, the whole's index of each of its own."""

    whole: tuple[int, ...]
    dims: tuple[Integers, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shard's own shape."""
        return tuple(dim.size for dim in self.dims)

    def in_parts(self) -> Portion:
        """The same of a complex value's real view, whose last dim is real and imaginary part."""
        return Portion((*self.whole, 2), (*self.dims, np.arange(2)))


def value_of(tensor: torch.Tensor) -> Value:
    """`tensor` as a Value that shares its memory where it lies on the CPU."""
    import torch

    dtype = dtype_named(str(tensor.dtype))
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    if dtype.lies_in_integers:
        plain = plain.view(torch.uint16 if dtype.nbytes == 2 else torch.uint8)
    return Value(dtype, plain.numpy())


def to_torch(value: Value, *, share: bool = False) -> torch.Tensor:
    """`value` as a torch tensor, bit for bit; of its own memory, unless it may `share` the bits."""
    import torch

    plain = torch.from_numpy(value.bits if share else np.array(value.bits))
    dtype = getattr(torch, value.dtype.name)
    return plain.view(dtype) if value.numel else plain.to(dtype)
