"""Writes tensors into a .safetensors file: a length, a JSON header with their places, bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

SAFE_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
    torch.complex128: "C128", torch.bool: "BOOL", torch.int8: "I8", torch.int16: "I16",
    torch.int32: "I32", torch.int64: "I64", torch.uint8: "U8", torch.uint16: "U16",
    torch.uint32: "U32", torch.uint64: "U64",
}  # fmt: skip


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors`, dense and in row-major order, under their names."""
    header: dict[str, object] = {}
    pieces: list[bytes] = []
    end = 0
    for name, tensor in tensors.items():
        dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        octets = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
        first, end = end, end + len(octets)
        shape, dtype = list(tensor.shape), SAFE_NAMES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}
        pieces.append(octets)
    words = json.dumps(header, separators=(",", ":")).encode()
    words += b" " * (-len(words) % 8)
    path.write_bytes(len(words).to_bytes(8, "little") + words + b"".join(pieces))
