"""What other tools write, of values that the tests know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dumpcmp.archive.read.reader import Archive
from dumpcmp.importing import import_dump
from dumpcmp.nouns.value import DTYPES, Value, to_torch
from tests.archive.values import SMALL_NUMBERS

Arrays = Mapping[str, NDArray[Any]]
TENSORS = {name: to_torch(Value(DTYPES[name], bits)) for name, bits in SMALL_NUMBERS.items()}


def numbers(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def save_safetensors(
    tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write with the format's own library; a test that needs it is skipped where it is missing."""
    pytest.importorskip("safetensors.torch").save_file(tensors, path, metadata)


def imported(source: Path, **options: Any) -> Archive:
    """The archive that `source` becomes."""
    path = source.with_name(f"{source.name}-imported")
    import_dump(source, path, **options)
    return Archive(path)


def bits_of(archive: Archive) -> dict[str, bytes]:
    """The bytes of all values, by their names."""
    return {str(key): archive.load(record).bits.tobytes() for key, record in archive.items()}


def msprobe(root: Path, values: Mapping[str, torch.Tensor], parents: Mapping[str, str]) -> Path:
    """A rank as msProbe writes it; `values` by the names of their files."""
    place = root / "step0" / "rank0"
    (place / "dump_tensor_data").mkdir(parents=True)
    told: dict[str, Any] = {}
    for name, tensor in values.items():
        call, _, slot = name.partition("!")
        kind, *rest = slot.split(".")
        file = f"{call}.{slot}.pt"
        torch.save(tensor, place / "dump_tensor_data" / file)
        entry = {"type": "torch.Tensor", "dtype": str(tensor.dtype), "shape": list(tensor.shape),
                 "Max": 1.0, "data_name": file}  # fmt: skip
        kind = {"input": "input_args"}.get(kind, kind) if "forward" in call else kind
        listed = told.setdefault(call, {}).setdefault(kind, {} if kind == "parameters" else [])
        listed.append(entry) if isinstance(listed, list) else listed.update({rest[0]: entry})
    (place / "dump.json").write_text(json.dumps({"task": "tensor", "data": told}))
    (place / "construct.json").write_text(json.dumps(dict(parents)))
    return place
