"""Tensors as torch has them, as ONNX files have them, and as ONNX Runtime takes and gives them."""

from __future__ import annotations

import ctypes
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.nouns.onnx_dtypes import ONNX_DTYPES, ONNX_NUMBERS

if TYPE_CHECKING:
    from onnx import TensorProto

# What numpy has no word for -> integers of the same width. ONNX calls them by number.
_ODD = {name: number for number, name in ONNX_DTYPES.items() if number >= ONNX_NUMBERS["bfloat16"]}
_INTEGERS = {1: torch.uint8, 2: torch.uint16}
_ODD_NUMBERS = {number: name for name, number in _ODD.items()}
_TYPES = {
    "float": "float32", "double": "float64", "float16": "float16", "bfloat16": "bfloat16",
    "bool": "bool", **{f"{u}int{n}": f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)},
    "complex64": "complex64", "complex128": "complex128",
    **{name.replace("_", ""): name for name in _ODD if name != "bfloat16"},
}  # fmt: skip


def dtype_of(kind: str) -> str:
    """Torch's name of the dtype of ``tensor(float)``; empty for what is no tensor of numbers."""
    if not (kind.startswith("tensor(") and kind.endswith(")")):
        return ""
    return _TYPES.get(kind[7:-1], "")


def number_of_dtype(dtype: torch.dtype) -> int:
    """The number that ONNX has for a dtype of torch."""
    return ONNX_NUMBERS[str(dtype).removeprefix("torch.")]


def from_proto(tensor: TensorProto, room: Path) -> Tensor:
    """The numbers of a tensor of a file, whose external data lies in `room`."""
    return TensorFiles(room).tensor(tensor)


@dataclass(eq=False)
class TensorFiles:
    """Reads tensors of ONNX files; external data is mapped from `folder` and not copied."""

    folder: Path
    _mapped: dict[Path, Any] = field(default_factory=dict)

    def tensor(self, proto: TensorProto) -> Tensor:
        """The numbers of `proto`."""
        import onnx

        try:
            if proto.data_location == onnx.TensorProto.EXTERNAL:
                found = self._external(proto)
                if found is not None:
                    return found
            return from_array(np.array(onnx.numpy_helper.to_array(proto, str(self.folder))))
        except CaptureError:
            raise
        except Exception as error:  # whatever a damaged file makes of the reader
            message = str(error).partition("\n")[0][:200]
            raise CaptureError(f"the tensor {proto.name!r} cannot be read: {message}") from None

    def _external(self, proto: TensorProto) -> Tensor | None:
        """A tensor over mapped memory; None where its elements have no place of their own there."""
        entries = {entry.key: entry.value for entry in proto.external_data}
        path = self.folder / entries["location"]
        name = ONNX_DTYPES.get(proto.data_type, "")
        start, nbytes = int(entries.get("offset", 0)), path.stat().st_size
        if not name or path.is_symlink() or sys.byteorder != "little":
            return None
        dtype: torch.dtype = getattr(torch, name)
        sizes = tuple(proto.dims)
        count = math.prod(sizes)
        length = int(entries.get("length", count * dtype.itemsize))
        if not 0 <= start <= start + length <= nbytes or length != count * dtype.itemsize:
            raise CaptureError(
                f"the tensor {proto.name!r} of shape {list(sizes)} has {length} bytes from "
                f"{start} on in {path.name}, which has {nbytes} bytes",
                hint="export the model again: its external data is cut off, or of another export",
            )
        if start % dtype.itemsize or not count:
            return None
        if path not in self._mapped:
            self._mapped[path] = torch.UntypedStorage.from_file(str(path), False, nbytes)
        strides = torch.empty(sizes, device="meta").stride()
        empty = torch.empty(0, dtype=dtype)
        return empty.set_(self._mapped[path], start // dtype.itemsize, sizes, strides)


def from_array(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of numpy's array, those of dtypes that numpy has from elsewhere included."""
    name = array.dtype.name
    if name in _ODD:
        return torch.from_numpy(array.view(f"u{array.itemsize}")).view(getattr(torch, name))
    if name in ("int4", "uint4", "int2", "uint2"):
        array = array.astype(np.int8 if name[0] == "i" else np.uint8)
    if array.dtype.kind not in "biufc":
        raise CaptureError(f"it holds {name}, which are no numbers")
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def to_ort(tensor: Tensor) -> Any:
    """An OrtValue of the same numbers."""
    from onnxruntime import OrtValue

    plain = tensor.detach().cpu().contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    if name in _ODD:
        array = plain.view(_INTEGERS[plain.element_size()]).numpy()
        return OrtValue.ortvalue_from_numpy_with_onnx_type(array, _ODD[name])
    return OrtValue.ortvalue_from_numpy(plain.numpy())


def from_ort(value: Any) -> Tensor:
    """A tensor of the numbers of an OrtValue."""
    name = _ODD_NUMBERS.get(value.element_type())
    if name is None:
        return from_array(np.array(value.numpy()))
    shape = tuple(value.shape())
    nbytes = value.tensor_size_in_bytes()
    dtype: torch.dtype = getattr(torch, name)
    if not nbytes:
        return torch.empty(shape, dtype=dtype)
    data = bytearray(ctypes.string_at(value.data_ptr(), nbytes))
    return torch.frombuffer(data, dtype=dtype).reshape(shape)
