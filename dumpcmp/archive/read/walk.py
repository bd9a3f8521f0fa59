"""A part that dumpcmp did not write, or that a tool rewrote: read by its groups, through h5py."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive.escaping import unescaped
from dumpcmp.archive.read.contents import Contents
from dumpcmp.archive.schema import CALL_ATTRS, CALL_FIELDS, INDEX_GROUP, NO_ROW
from dumpcmp.archive.write.part import ROW_TYPE
from dumpcmp.nouns.dtypes import DTYPES, Dtype
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.record import Location

_TROUBLE = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError)


def walk(path: Path, model: str, step: int, part: int) -> Contents:
    """The contents of `path` by its groups: the names and attributes that docs/format.md tells."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            return _Walk(path, model, step, part).through(file)
    except _TROUBLE as error:
        raise ArchiveError(
            f"{path} cannot be read as HDF5: {error}", hint="dumpcmp audit says what is left of it"
        ) from error


def read_dataset(location: Location, dtype: Dtype, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """The raw elements of a dataset that cannot be mapped: chunked or compressed."""
    bits = np.empty(shape, dtype.storage)
    if bits.nbytes != location.nbytes:
        raise ArchiveError(f"{location.part}: {location.dataset} has not the size of its shape")
    try:
        with h5py.File(location.part, "r", locking=False) as file:
            found = file[location.dataset]
            found.id.read(h5py.h5s.ALL, h5py.h5s.ALL, bits.view(np.uint8), found.id.get_type())
    except _TROUBLE as error:
        raise ArchiveError(f"{location.part}: cannot read {location.dataset}: {error}") from error
    return bits


class _Walk:
    def __init__(self, path: Path, model: str, step: int, part: int) -> None:
        self.path, self.model, self.step, self.part = path, model, step, part
        self.rows: list[tuple[Any, ...]] = []
        self.calls: list[list[Any]] = []
        self.forms: list[list[Any]] = []
        self.datasets: dict[int, str] = {}
        self.seen: dict[Any, int] = {}

    def through(self, file: h5py.File) -> Contents:
        for group in sorted(_call_groups(file), key=lambda group: _number(group, "order")):
            self.calls.append(_call(group))
            for name in group:
                if not name.startswith("_") and isinstance(group.get(name), h5py.Dataset):
                    self._take(group, name)
        rows = np.array(self.rows, ROW_TYPE) if self.rows else np.empty(0, ROW_TYPE)
        found = Contents(self.path, rows, self.calls, self.forms, self.model, self.step)
        found.datasets, found.sealed = self.datasets, True
        found.check()
        return found

    def _take(self, group: h5py.Group, name: str) -> None:
        dataset = group[name]
        row = len(self.rows)
        token = h5py.h5o.get_info(dataset.id).addr
        same = self.seen.setdefault(token, row)
        nbytes = 0 if dataset.shape is None else dataset.size * dataset.dtype.itemsize
        form = _form(dataset, name)
        nbytes = math.prod(form[2]) * DTYPES[form[1]].nbytes if dataset.shape is not None else 0
        offset = dataset.id.get_offset() or 0
        if nbytes and not offset:
            self.datasets[row] = dataset.name
        self.forms.append(form)
        self.rows.append((
            len(self.calls) - 1, row, _number(group, "order"), self.part,
            NO_ROW if same == row else same, 0, offset, nbytes,
            _text(dataset.attrs.get("digest", b"")).encode(),
        ))  # fmt: skip


def _call_groups(group: h5py.Group) -> Iterator[h5py.Group]:
    """All groups below `group` that are calls: they have an op."""
    for name in group:
        link = group.get(name, getlink=True)
        if name == INDEX_GROUP or not isinstance(link, h5py.HardLink):
            continue
        child = group[name]
        if isinstance(child, h5py.Group):
            if "op" in child.attrs:
                yield child
            yield from _call_groups(child)


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else str(value)


def _number(holder: Any, name: str) -> int:
    return int(holder.attrs.get(name, 0))


def _call(group: h5py.Group) -> list[Any]:
    told: dict[str, Any] = {name: _text(group.attrs.get(name, "")) for name in CALL_ATTRS}
    for name in CALL_ATTRS:
        if f"_{name}" in group:
            told[name] = _text(group[f"_{name}"][()])
    told |= {"call": _number(group, "call"), "order": _number(group, "order")}
    told["origins"] = json.loads(told["origins"] or "[]")
    told["phase"] = told["phase"] or "forward"
    return [told[name] for name in CALL_FIELDS]


def _form(dataset: h5py.Dataset, name: str) -> list[Any]:
    attrs = dataset.attrs
    dtype = _text(attrs.get("dtype", dataset.dtype.name))
    shape = attrs.get("shape", dataset.shape or ())
    kept = _text(attrs.get("kept", "full"))
    if dtype not in DTYPES and kept == "full":
        raise ValueError(f"{dataset.name} has elements of an unknown type {dtype}")
    return [
        unescaped(name), dtype, [int(size) for size in shape],
        [int(size) for size in attrs.get("stride", ())], _number(dataset, "storage_offset"),
        _text(attrs.get("device", "cpu")), _text(attrs.get("layout", "")), kept,
        _text(attrs.get("problem", "")), _text(attrs.get("seen_in", "")),
        _stored(dataset, kept),
    ]  # fmt: skip


def _stored(dataset: h5py.Dataset, kept: str) -> list[Any] | None:
    """What stands for the elements of a summarised value, and its attributes."""
    return None if kept != "summary" else _summary(dataset)


def _summary(dataset: h5py.Dataset) -> list[Any]:
    known = ("dtype", "shape", "stride", "storage_offset", "device", "layout", "kept",
             "problem", "seen_in", "digest")  # fmt: skip
    others = [
        [name, value.item() if isinstance(value, np.generic) and value.dtype.kind in "iuf"
         else _text(value)]
        for name, value in dataset.attrs.items() if name not in known
    ]  # fmt: skip
    return [dataset.dtype.name, [int(size) for size in dataset.shape], others]
