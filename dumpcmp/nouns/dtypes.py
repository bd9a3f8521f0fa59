"""The element types that an archive holds: their names, their bytes, their rounding."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.errors import DumpcmpError


class Kind(StrEnum):
    """What the elements of a tensor are, which decides how they are compared."""

    FLOAT = "float"
    INT = "int"
    BOOL = "bool"
    COMPLEX = "complex"


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
    """The Dtype called `name`, with or without ``torch.`` before it."""
    try:
        return DTYPES[name.removeprefix("torch.")]
    except KeyError:
        raise DumpcmpError(
            f"dtype {name!r} cannot be stored", hint=f"known dtypes: {', '.join(DTYPES)}"
        ) from None


def _e4m3fn_codes() -> NDArray[np.float32]:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(
        exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent.astype(float) - 10)
    )
    magnitude[(codes & 127) == 127] = np.nan
    return np.where(codes & 128, -magnitude, magnitude).astype(np.float32)


_E4M3FN = _e4m3fn_codes()


def widen(bits: NDArray[np.generic], dtype: Dtype) -> NDArray[np.generic]:
    """The numbers that `bits` stand for, in a numpy type that computes: float32 for short floats.

    Types that numpy computes with are returned as they are, without a copy.
    """
    with np.errstate(invalid="ignore"):  # a signalling NaN is as good as a quiet one
        match dtype.name:
            case "bfloat16":
                return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
            case "float16":
                return bits.astype(np.float32)
            case "float8_e4m3fn":
                return _E4M3FN[bits.astype(np.intp)]
            case "float8_e5m2":
                return (bits.astype(np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)
            case _:
                return bits
