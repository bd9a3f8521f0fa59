"""The weights and constants of a ``.pt2``, mapped from the file: no pickle is read."""

from __future__ import annotations

import json
import math
import struct
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.errors import ProgramFileError
from dumpcmp.pytorch.packages import CONFIGS, load_graph
from dumpcmp.pytorch.plain_files import open_plain

_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_MAGIC = b"PK\x03\x04"
_LARGEST_CONFIG = 1 << 28  # bytes
_AGAIN = "write it again: torch.export.save(program, 'model.pt2')"


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """A program, and its weights and constants by name; none of them were unpickled."""

    program: torch.export.ExportedProgram
    tensors: Mapping[str, Tensor]


def load_program(path: Path) -> LoadedProgram:
    """The program at `path` with its weights, which stay in the file until they are used."""
    program = load_graph(path)
    known = {**program.state_dict, **program.constants}
    return LoadedProgram(program, weights_of(path, {n: t.dtype for n, t in known.items()}))


def weights_of(path: Path, dtypes: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
    """The weights and constants of a package by name, whose dtypes its program tells."""
    tensors: dict[str, Tensor] = {}
    try:
        with open_plain(path) as file, zipfile.ZipFile(file) as archive:
            entries = {each.filename.partition("/")[2]: each for each in archive.infolist()}
            storage: Any = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)
            for config_name in CONFIGS:
                room = config_name.rpartition("/")[0]
                if entries[config_name].file_size > _LARGEST_CONFIG:
                    raise ValueError(f"{config_name} has {entries[config_name].file_size} bytes")
                config = json.loads(archive.read(entries[config_name]))["config"]
                for name, payload in config.items():
                    entry = entries[f"{room}/{payload['path_name']}"]
                    start = _start_of(path, file, entry)
                    tensors[name] = _tensor(storage, start, entry, payload, dtypes[name])
    except ProgramFileError:
        raise
    except Exception as error:  # whatever a damaged file makes of the readers
        message = f"{type(error).__name__}: {error}"[:200]
        raise ProgramFileError(
            f"{path}: its weights cannot be read: {message}", hint=_AGAIN
        ) from None
    return tensors


def _start_of(path: Path, file: Any, entry: zipfile.ZipInfo) -> int:
    """Where the bytes of an entry begin; torch stores them as they are."""
    if entry.compress_type != zipfile.ZIP_STORED or sys.byteorder != "little":
        raise ProgramFileError(f"{path}: its entry {entry.filename} is compressed", hint=_AGAIN)
    file.seek(entry.header_offset)
    header = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if header[0] != _MAGIC:
        raise ProgramFileError(f"{path}: {entry.filename} is not where it should be", hint=_AGAIN)
    return entry.header_offset + _LOCAL_HEADER.size + int(header[-2]) + int(header[-1])


def _tensor(
    storage: Any, start: int, entry: zipfile.ZipInfo, payload: Mapping[str, Any], dtype: torch.dtype
) -> Tensor:
    """The tensor that `payload` describes, over the mapped file where its bytes lie aligned."""
    meta = payload["tensor_meta"]
    sizes, strides = ([int(each["as_int"]) for each in meta[key]] for key in ("sizes", "strides"))
    offset, count = int(meta["storage_offset"]["as_int"]), math.prod(sizes)
    if min([offset, *sizes, *strides, 0]) < 0 or len(sizes) != len(strides):
        raise ValueError(f"{entry.filename} has sizes {sizes} and strides {strides}")
    if not count:
        return torch.empty(sizes, dtype=dtype)
    last = offset + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
    if (last + 1) * dtype.itemsize > entry.file_size:
        raise ValueError(
            f"{entry.filename} has {entry.file_size} bytes, fewer than {sizes} of {dtype} need"
        )
    if start + entry.file_size > storage.nbytes():
        raise ValueError(f"{entry.filename} ends behind the file")
    if start % dtype.itemsize:
        piece = bytes(storage[start : start + entry.file_size])
        flat = torch.frombuffer(bytearray(piece), dtype=torch.uint8).view(dtype)
        return flat.as_strided(sizes, strides, offset)
    at = start // dtype.itemsize + offset
    return torch.empty(0, dtype=dtype).set_(storage, at, sizes, strides)
