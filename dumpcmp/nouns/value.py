"""A tensor's value outside torch: raw bits in a numpy array, and the dtype they stand in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.dtypes import Dtype, Kind, dtype_named, widen

if TYPE_CHECKING:
    import torch

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """The elements of one tensor. `bits` has the tensor's shape and its dtype's storage type."""

    dtype: Dtype
    bits: NDArray[np.generic]

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.bits.shape

    @property
    def numel(self) -> int:
        """How many elements there are."""
        return self.bits.size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.bits.nbytes

    def line(self) -> Value:
        """The elements one after another; a complex one is two, its real and imaginary part."""
        flat = np.ascontiguousarray(self.bits).reshape(-1)
        if self.dtype.kind is not Kind.COMPLEX:
            return Value(self.dtype, flat)
        return Value(dtype_named(flat.real.dtype.name), flat.view(flat.real.dtype))

    def numbers(self) -> NDArray[np.generic]:
        """The elements as numbers that numpy computes with (see `widen`)."""
        return widen(self.bits, self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Portion:
    """What a shard is of its whole: for each dim, the whole's index of each of its own."""

    whole: tuple[int, ...]
    dims: tuple[Integers, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shard's own shape."""
        return tuple(dim.size for dim in self.dims)


def value_of(tensor: torch.Tensor) -> Value:
    """`tensor` as a Value that shares its memory where it lies on the CPU."""
    import torch

    dtype = dtype_named(str(tensor.dtype))
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    if dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        plain = plain.view(torch.uint16 if dtype.nbytes == 2 else torch.uint8)
    return Value(dtype, plain.numpy())


def to_torch(value: Value) -> torch.Tensor:
    """`value` as a torch tensor of its own memory, bit for bit."""
    import torch

    plain = torch.from_numpy(np.array(value.bits))
    return (
        plain.view(getattr(torch, value.dtype.name))
        if value.numel
        else plain.to(getattr(torch, value.dtype.name))
    )
