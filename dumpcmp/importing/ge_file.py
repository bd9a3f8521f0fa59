"""Reads what GE dumps of a task: a protobuf that says what follows it, then the elements."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dumpcmp.importing.foreign import (
    ArraySource,
    FileBytes,
    Foreign,
    ForeignFile,
    Listed,
    RangeSource,
)
from dumpcmp.nouns.record import Source
from dumpcmp.nouns.value import DTYPES

_DTYPES = {
    1: "float32", 2: "float16", 3: "int8", 4: "uint8", 5: "int16", 6: "uint16", 7: "int32",
    8: "int64", 9: "uint32", 10: "uint64", 11: "bool", 12: "float64", 16: "complex64",
    17: "complex128", 27: "bfloat16",
}  # fmt: skip
_PLAIN_FORMATS = frozenset((0, 1, 2, 16, 27, 30))  # NCHW, NHWC, ND, HWCN, NDHWC, NCDHW
_NC1HWC0, _FRACTAL_NZ = 3, 29  # tiles of channels, and of rows and columns
_LARGEST_HEADER = 64 << 20
_MOST_VALUES = 100_000  # of a task
_MOST_DIMS = 64
_LENGTH_NBYTES = 8  # of the number before the protobuf

_OUTPUT, _INPUT = 3, 4  # fields of DumpData
_FIELDS = {"input": (5, 6), "output": (6, 7)}  # size and original shape


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor of a task, as the protobuf describes it, and where its elements lie."""

    name: str
    dtype: str
    format: int
    shape: tuple[int, ...]
    original: tuple[int, ...]
    start: int
    nbytes: int

    @property
    def tiled_to(self) -> tuple[int, ...] | None:
        """The shape that it has without tiles; None where that cannot be told."""
        if self.format in _PLAIN_FORMATS:
            return self.shape
        is_known = _is_nz(self) or _is_5d(self)
        return self.original if is_known else None

    @property
    def problem(self) -> str:
        """Why its elements cannot be had."""
        if self.dtype not in DTYPES:
            return f"elements of type {self.dtype} cannot be stored"
        if self.tiled_to is None:
            told = f"{list(self.shape)} of {list(self.original)}"
            return f"it lies in GE's format {self.format}, which is not known here: {told}"
        needed = math.prod(self.shape) * DTYPES[self.dtype].nbytes
        if needed > self.nbytes:
            return f"it has {self.nbytes} bytes, and its shape {list(self.shape)} takes {needed}"
        return ""


def _is_nz(tensor: _Tensor) -> bool:
    """Whether it is rows and columns in tiles: ``[..., columns, rows, row, column]``."""
    if tensor.format != _FRACTAL_NZ or len(tensor.shape) < 4:
        return False
    *batch, outer, inner, rows, columns = tensor.shape
    *original, height, width = (0, 0, *tensor.original)[-len(batch) - 2 :]
    return (
        [*original] == batch and 0 < height <= inner * rows and 0 < width <= outer * columns
        and len(tensor.original) == len(batch) + 2
    )  # fmt: skip


def _is_5d(tensor: _Tensor) -> bool:
    """Whether it is NCHW or NHWC, whose channels lie in tiles."""
    if tensor.format != _NC1HWC0 or len(tensor.shape) != 5 or len(tensor.original) != 4:
        return False
    batch, outer, height, width, inner = tensor.shape
    rest, channels = _without_channels(tensor)
    return rest == (batch, height, width) and 0 < channels <= outer * inner


def _without_channels(tensor: _Tensor) -> tuple[tuple[int, ...], int]:
    """Batch, height and width of the original, and its channels, wherever those stand."""
    n, first, second, third = tensor.original
    if (first, second) == tensor.shape[2:4]:
        return (n, first, second), third
    return (n, second, third), first


def _untiled(bits: NDArray[np.generic], tensor: _Tensor) -> NDArray[np.generic]:
    if tensor.format == _FRACTAL_NZ:
        *batch, outer, inner, rows, columns = tensor.shape
        at = len(batch)
        turned = bits.transpose((*range(at), at + 1, at + 2, at, at + 3))
        whole = turned.reshape(*batch, inner * rows, outer * columns)
        height, width = tensor.original[-2:]
        return whole[..., :height, :width]
    batch_size, outer, height, width, inner = tensor.shape
    (_, *_), channels = _without_channels(tensor)
    whole = bits.transpose(0, 1, 4, 2, 3).reshape(batch_size, outer * inner, height, width)
    whole = whole[:, :channels]
    is_last = tensor.original[1:3] == (height, width)
    return whole.transpose(0, 2, 3, 1) if is_last else whole


class GeFile(ForeignFile):
    """One task: its inputs, then its outputs. CANN is not needed."""

    @cached_property
    def _octets(self) -> FileBytes:
        return FileBytes(self.path)

    @cached_property
    def _tensors(self) -> dict[str, _Tensor]:
        """The inputs and outputs by name: ``input.0``, ``output.1.Add_2`` of the op Add_2."""
        nbytes = self._octets.nbytes
        length = int.from_bytes(self._octets.at(0, min(_LENGTH_NBYTES, nbytes)), "little")
        if nbytes < _LENGTH_NBYTES or length > min(_LARGEST_HEADER, nbytes - _LENGTH_NBYTES):
            raise self.wrong(
                f"it has {nbytes} bytes, and its header asks for {length}",
                "it was cut short, or is no dump of GE: leave it out with --files",
            )
        header = self._octets.at(_LENGTH_NBYTES, length)
        try:
            return self._described(header, _LENGTH_NBYTES + length)
        except (ValueError, TypeError) as error:
            raise self.wrong(f"its header makes no sense: {error}") from None

    def _described(self, header: bytes, start: int) -> dict[str, _Tensor]:
        told: dict[str, list[bytes]] = {"input": [], "output": []}
        for number, content in _fields(header):
            if number in (_INPUT, _OUTPUT) and isinstance(content, bytes):
                told["input" if number == _INPUT else "output"].append(content)
        if sum(map(len, told.values())) > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES} tensors")
        found: dict[str, _Tensor] = {}
        for kind in ("input", "output"):
            for at, content in enumerate(told[kind]):
                tensor = _tensor(kind, at, content, start)
                start += tensor.nbytes
                found[tensor.name] = tensor
        if start > self._octets.nbytes:
            raise ValueError(f"it asks for {start} bytes, and the file has {self._octets.nbytes}")
        return found

    def listed(self) -> Listed:
        return Listed(tuple(
            Foreign(self.path, t.name, t.dtype, t.tiled_to or t.shape, t.problem)
            for t in self._tensors.values()
        ))  # fmt: skip

    def source(self, value: Foreign) -> Source:
        tensor = self._tensors[value.name]
        if tensor.format in _PLAIN_FORMATS:
            return RangeSource(self._octets, tensor.start, value.nbytes)
        stored = np.dtype(DTYPES[tensor.dtype].storage)
        content = self._octets.at(tensor.start, math.prod(tensor.shape) * stored.itemsize)
        return ArraySource(_untiled(np.frombuffer(content, stored).reshape(tensor.shape), tensor))


def _tensor(kind: str, number: int, content: bytes, start: int) -> _Tensor:
    fields: dict[int, int | bytes] = dict(_fields(content))
    at_size, at_original = _FIELDS[kind]
    told = int(_whole(fields.get(1, 0)))
    of_op = _name_of(fields.get(4, b"")) if kind == "output" else ""
    return _Tensor(
        f"{kind}.{number}.{of_op}" if of_op else f"{kind}.{number}",
        _DTYPES.get(told, f"ge.{told}"),
        _whole(fields.get(2, 0)) & 0xFF,  # the rest says more of some formats
        _sizes(fields.get(3, b"")),
        _sizes(fields.get(at_original, b"")),
        start,
        _whole(fields.get(at_size, 0)),
    )


def _whole(field: int | bytes) -> int:
    if not isinstance(field, int):
        raise ValueError("a number is text")
    return field


def _name_of(field: int | bytes) -> str:
    """The name of the op that an output is of, before ops were fused."""
    name = dict(_fields(field)).get(1, b"") if isinstance(field, bytes) else b""
    return name.decode(errors="replace") if isinstance(name, bytes) else ""


def _sizes(field: int | bytes) -> tuple[int, ...]:
    if not isinstance(field, bytes):
        raise ValueError("a shape is a number")
    sizes: list[int] = []
    for number, content in _fields(field):
        if number == 1:
            sizes += [content] if isinstance(content, int) else _packed(content)
    if len(sizes) > _MOST_DIMS or any(size >= 1 << 62 for size in sizes):
        raise ValueError(f"{len(sizes)} dims, or a size that no tensor has")
    return tuple(sizes)


def _packed(content: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(content):
        number, at = _varint(content, at)
        numbers.append(number)
    return numbers


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf: number and content."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        match tag & 7:
            case 0:
                value, at = _varint(message, at)
                yield tag >> 3, value
                continue
            case 1:
                length = 8
            case 2:
                length, at = _varint(message, at)
            case 5:
                length = 4
            case kind:
                raise ValueError(f"a field of kind {kind}")
        if at + length > len(message):
            raise ValueError("a field ends behind its message")
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("a number ends behind its message")
        octet = message[at]
        at += 1
        number |= (octet & 127) << shift
        if octet < 128:
            return number, at
    raise ValueError("a number of more than 64 bits")
