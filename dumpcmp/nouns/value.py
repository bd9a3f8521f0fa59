"""A tensor's value outside torch: its element type, and raw bits of that type in an array."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.errors import DumpcmpError

if TYPE_CHECKING:
    import torch

_BYTES = 1 << 20  # that are held against each other at once

Integers = NDArray[np.int64]


class Kind(StrEnum):
    """What the elements of a tensor are, which decides how they are compared."""

    FLOAT = "float"
    INT = "int"
    BOOL = "bool"
    COMPLEX = "complex"
    OPAQUE = "opaque"  # of a type that is not stored, such as qint8


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type. `storage` is the numpy type of its raw bytes, bits unchanged."""

    name: str  # torch's name for it: "bfloat16"
    storage: str  # "<u2": numpy has no bfloat16 and no float8, so their bits lie in integers
    kind: Kind
    eps: float = 0.0  # distance from 1.0 to the next number; 0 where arithmetic is exact
    least_exponent: int = -126  # of the smallest normal number

    @property
    def nbytes(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.storage).itemsize

    @property
    def lies_in_integers(self) -> bool:
        """Whether numpy has no such float, and its bits lie in integers."""
        return self.kind is Kind.FLOAT and np.dtype(self.storage).kind == "u"

    def __str__(self) -> str:
        return self.name


DTYPES: dict[str, Dtype] = {
    dtype.name: dtype
    for dtype in (
        Dtype("float64", "<f8", Kind.FLOAT, 2.0**-52, -1022),
        Dtype("float32", "<f4", Kind.FLOAT, 2.0**-23),
        Dtype("float16", "<f2", Kind.FLOAT, 2.0**-10, -14),
        Dtype("bfloat16", "<u2", Kind.FLOAT, 2.0**-7),
        Dtype("float8_e4m3fn", "|u1", Kind.FLOAT, 2.0**-3, -6),
        Dtype("float8_e5m2", "|u1", Kind.FLOAT, 2.0**-2, -14),
        Dtype("int8", "|i1", Kind.INT),
        Dtype("int16", "<i2", Kind.INT),
        Dtype("int32", "<i4", Kind.INT),
        Dtype("int64", "<i8", Kind.INT),
        Dtype("uint8", "|u1", Kind.INT),
        Dtype("uint16", "<u2", Kind.INT),
        Dtype("uint32", "<u4", Kind.INT),
        Dtype("uint64", "<u8", Kind.INT),
        Dtype("bool", "|b1", Kind.BOOL),
        Dtype("complex64", "<c8", Kind.COMPLEX, 2.0**-23),
        Dtype("complex128", "<c16", Kind.COMPLEX, 2.0**-52, -1022),
    )
}


def dtype_named(name: str) -> Dtype:
    """The Dtype called `name`, with or without ``torch.`` before it; OPAQUE if it is not stored.

    Records have any dtype of torch. What nobody can read explains no rounding either.
    """
    name = name.removeprefix("torch.")
    return DTYPES.get(name) or Dtype(name, "|u1", Kind.OPAQUE)


def stored_dtype(name: str) -> Dtype:
    """The same of a value whose elements are needed: an error where they cannot be stored."""
    try:
        return DTYPES[name.removeprefix("torch.")]
    except KeyError:
        raise DumpcmpError(
            f"dtype {name!r} cannot be stored", hint=f"known dtypes: {', '.join(DTYPES)}"
        ) from None


# An e4m3fn is a float16 without the last seven bits, but for the bias of its exponent and one NaN.
_CODES = np.arange(256, dtype=np.uint16)
_E4M3FN = ((_CODES & 128) << 8 | (_CODES & 127) << 7).view(np.float16).astype(np.float32) * 256
_E4M3FN[[127, 255]] = np.nan


def widen(bits: NDArray[np.generic], dtype: Dtype) -> NDArray[np.generic]:
    """The numbers that `bits` stand for, in a numpy type that computes: float32 for short floats.

    Types that numpy computes with are returned as they are, without a copy.
    """
    match dtype.name:
        case "bfloat16":
            return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        case "float16":
            return _single(bits)
        case "float8_e4m3fn":
            return _E4M3FN[bits.astype(np.intp)]
        case "float8_e5m2":
            return _single((bits.astype(np.uint16) << np.uint16(8)).view(np.float16))
        case _:
            return bits


def _single(halves: NDArray[np.generic]) -> NDArray[np.float32]:
    with np.errstate(invalid="ignore"):  # a signalling NaN is as good as a quiet one
        return halves.astype(np.float32)


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

    dtype = stored_dtype(str(tensor.dtype))
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    if dtype.lies_in_integers:
        plain = plain.view(torch.uint16 if dtype.nbytes == 2 else torch.uint8)
    return Value(dtype, plain.numpy())


def to_torch(value: Value, *, share: bool = False) -> torch.Tensor:
    """`value` as a torch tensor, bit for bit; of its own memory, unless it may `share` the bits."""
    import torch

    plain = torch.from_numpy(value.bits if share else np.array(value.bits))
    dtype = getattr(torch, value.dtype.name)
    if plain.dtype is dtype:
        return plain
    return plain.view(dtype) if value.numel else plain.to(dtype)
