"""A weight as rows of numbers: a view of mapped bits, dequantised where it has scales."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.value import DTYPES, Kind, Value, to_torch
from dumpcmp.weights.checkpoint_files import Weight
from dumpcmp.weights.weight_names import WeightPart

BLOCK = 1 << 18  # elements that are in memory at once, of each side
_BLOCK_SIZES = (128, 64, 32, 256, 16)  # of block scales, the usual first
_FAR = 16  # elements of a row that are sampled


@dataclass(frozen=True, slots=True)
class Scale:
    """What each block of codes is multiplied by: ``table[row // rows, column // columns]``."""

    table: Tensor  # float32, two dims
    rows: int
    columns: int

    @property
    def transposed(self) -> Scale:
        """The scale of the transposed codes."""
        return Scale(self.table.t(), self.columns, self.rows)


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Some rows of a matrix."""

    values: Tensor
    slack: Tensor | None = None  # of codes with a scale: half the distance between two codes


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """RowNumbers and columns of one weight. Nothing is read until a block is asked for."""

    name: str
    dtype: str
    bits: NDArray[np.generic]  # two dims, a view of what is mapped
    scale: Scale | None = None
    first_row: int = 0  # of the weight, as `scale` counts
    first_column: int = 0
    number: int | None = None  # of an expert in its stack

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return int(self.bits.shape[0])

    @property
    def columns(self) -> int:
        """How many columns it has."""
        return int(self.bits.shape[1])

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of `values`."""
        found: torch.dtype = torch.float32 if self.scale else getattr(torch, self.dtype)
        return found

    @property
    def transposed(self) -> Matrix:
        """The same with rows for columns; nothing is copied."""
        return replace(
            self, bits=self.bits.T, scale=self.scale and self.scale.transposed,
            first_row=self.first_column, first_column=self.first_row,
        )  # fmt: skip

    def rows_between(self, start: int, end: int) -> Matrix:
        """Some of the rows."""
        return replace(self, bits=self.bits[start:end], first_row=self.first_row + start)

    def columns_of(self, number: int, of: int) -> Matrix:
        """The `number`-th of `of` equal runs of columns."""
        size = self.columns // of
        start = number * size
        return replace(
            self, bits=self.bits[:, start : start + size], first_column=self.first_column + start
        )

    def codes(self) -> Matrix:
        """What is stored, without the scale."""
        return replace(self, scale=None)

    def block(
        self, rows: slice | NDArray[np.int64], columns: NDArray[np.int64] | None = None
    ) -> RowBlock:
        """The numbers of some rows, and of these columns alone where some are given."""
        bits = self.bits[rows] if columns is None else self.bits[rows][:, columns]
        values = to_torch(Value(DTYPES[self.dtype], np.ascontiguousarray(bits)), share=True)
        if self.scale is None:
            return RowBlock(values)
        at = np.arange(self.rows)[rows] + self.first_row
        across = (np.arange(self.columns) if columns is None else columns) + self.first_column
        table = self.scale.table[torch.from_numpy(at // self.scale.rows)]
        factors = table[:, torch.from_numpy(across // self.scale.columns)]
        return RowBlock(values.float() * factors, _half_step(values) * factors.abs())

    def sample(self) -> RowBlock:
        """A few elements of each row, at the same columns."""
        return self.block(slice(None), sampled_columns(self.columns))


def sampled_columns(num: int) -> NDArray[np.int64]:
    """Columns from the first to the last, evenly spread."""
    return np.unique(np.linspace(0, max(0, num - 1), min(num, _FAR)).astype(np.int64))


def _half_step(codes: Tensor) -> Tensor:
    """Half the distance from each code to the next one away from zero."""
    if not codes.dtype.is_floating_point:
        return torch.full(codes.shape, 0.5)
    dtype = DTYPES[str(codes.dtype).removeprefix("torch.")]
    _, exponent = torch.frexp(codes.float())
    exponent = (exponent - 1).clamp_min(dtype.least_exponent)
    return torch.ldexp(torch.full(codes.shape, dtype.eps / 2), exponent)


def is_quantised(weight: Weight) -> bool:
    """Whether its elements may be codes, which have a meaning with a scale alone."""
    dtype = DTYPES.get(weight.dtype)
    return dtype is not None and dtype.nbytes == 1 and dtype.kind in (Kind.FLOAT, Kind.INT)


def scale_names(name: str) -> Iterator[str]:
    """What the scale of the weight `name` may be called."""
    stem = name.removesuffix("weight").rstrip("._")
    yield from (f"{name}{end}" for end in ("_scale_inv", "_scale", "_scales", ".SCB"))
    yield from (
        f"{stem}.{end}" for end in ("scale", "scales", "weight_scale", "SCB", "scale_weight")
    )


def scale_of(weight: Weight, held: Mapping[str, Mapping[int, Weight]]) -> Weight | None:
    """The scale that stands beside codes; None of any other weight."""
    for name in scale_names(weight.name) if is_quantised(weight) else ():
        if found := held.get(name, {}).get(weight.rank):
            return found
    return None


def matrices(weight: Weight, scale: Weight | None, *, per_expert: bool = False) -> list[Matrix]:
    """A weight as one matrix, or, of a stack of experts, as one for each."""
    if weight.dtype not in DTYPES or weight.problem:
        why = weight.problem or f"elements of type {weight.dtype} cannot be read"
        raise ArchiveError(f"{weight.name}: {why}", hint="compare a file that has its elements")
    bits = weight.load()
    stacked = per_expert and bits.ndim >= 3
    sheets = bits.reshape(math.prod(bits.shape[:-2]), *bits.shape[-2:]) if stacked else [flat(bits)]
    factors = _factors(weight, scale, len(sheets), stacked) if scale else [None] * len(sheets)
    return [
        Matrix(weight.name, weight.dtype, sheet, factor, number=i if stacked else None)
        for i, (sheet, factor) in enumerate(zip(sheets, factors, strict=True))
    ]


def flat(bits: NDArray[np.generic]) -> NDArray[np.generic]:
    """Two dims for any number of them: rows are all but the last, of convolutions the first."""
    if bits.ndim < 2:
        return bits.reshape(-1, 1)
    if bits.ndim == 3:
        return bits.reshape(-1, bits.shape[-1])
    return bits.reshape(bits.shape[0], math.prod(bits.shape[1:]))


def _factors(
    weight: Weight, scale: Weight, num_sheets: int, stacked: bool
) -> Sequence[Scale | None]:
    table = to_torch(Value(DTYPES[scale.dtype], scale.load()), share=True).float()
    if scale.name.endswith("SCB"):
        table = table / 127  # bitsandbytes keeps the largest magnitude of a row
    shape = weight.shape[-2:] if stacked else (flat_shape(weight.shape))
    tables = table.reshape(num_sheets, -1) if stacked else [table]
    return [_scale(one, scale.shape[1:] if stacked else scale.shape, shape) for one in tables]


def flat_shape(shape: Sequence[int]) -> tuple[int, int]:
    """The shape that `flat` gives."""
    if len(shape) < 2:
        return math.prod(shape), 1
    if len(shape) == 3:
        return shape[0] * shape[1], shape[2]
    return shape[0], math.prod(shape[1:])


def _scale(table: Tensor, told: Sequence[int], shape: Sequence[int]) -> Scale | None:
    """A table as it lies over a matrix of `shape`; None where it cannot lie over it."""
    sizes = [size for size in told if size > 1] if table.numel() > 1 else []
    if not sizes:
        return Scale(table.reshape(1, 1), shape[0], shape[1])
    if table.numel() == shape[0]:
        return Scale(table.reshape(-1, 1), 1, shape[1])
    if len(told) < 2:
        return None
    rows, columns = told[-2], told[-1]
    return Scale(
        table.reshape(rows, columns), _block_size(shape[0], rows), _block_size(shape[1], columns)
    )


def _block_size(size: int, count: int) -> int:
    fitting = (one for one in _BLOCK_SIZES if math.ceil(size / one) == count)
    return next(fitting, math.ceil(size / count))


def portion_matrix(portion: WeightPart, sheets: Sequence[Matrix]) -> Matrix:
    """The rows of a weight that `portion` names."""
    sheet = sheets[portion.expert or 0]
    if portion.rows is not None:
        return sheet.rows_between(*portion.rows)
    size = sheet.rows // portion.of
    return sheet.rows_between(portion.number * size, (portion.number + 1) * size)
