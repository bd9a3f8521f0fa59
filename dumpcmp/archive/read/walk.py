"""A part that dumpcmp did not write, or that a tool rewrote: read by its groups, through h5py."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive import schema
from dumpcmp.archive.paths import unescaped
from dumpcmp.archive.read.contents import Contents
from dumpcmp.archive.schema import CALL_FIELDS, Form
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.record import Kept, Location, Stored
from dumpcmp.nouns.value import DTYPES, Dtype

_TROUBLE = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError)


def walk(path: Path, model: str, step: int, part: int) -> Contents:
    """The contents of `path` by its groups: the names and attributes that docs/format.md tells."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            return _contents(file, path, model, step, part)
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


def _contents(file: h5py.File, path: Path, model: str, step: int, part: int) -> Contents:
    calls: list[list[Any]] = []
    forms: list[Form] = []
    rows: list[tuple[Any, ...]] = []
    datasets: dict[int, str] = {}
    first: dict[int, int] = {}  # address of a dataset's header -> its first row
    for group in sorted(_call_groups(file), key=lambda group: _number(group, "order")):
        calls.append(_call(group))
        for name in group:
            dataset = None if name.startswith("_") else group.get(name)
            if not isinstance(dataset, h5py.Dataset):
                continue
            row, form = len(rows), _form(dataset, name)
            same = first.setdefault(h5py.h5o.get_info(dataset.id).addr, row)
            dtype, shape = form.held
            nbytes = 0 if dataset.shape is None else math.prod(shape) * DTYPES[dtype].nbytes
            offset = dataset.id.get_offset() or 0
            if nbytes and not offset:
                datasets[row] = dataset.name
            forms.append(form)
            rows.append((
                len(calls) - 1, row, _number(group, "order"), part,
                schema.NO_ROW if same == row else same, 0, offset, nbytes,
                _text(dataset.attrs.get("digest", b"")).encode(),
            ))  # fmt: skip
    table = np.array(rows, schema.ROW_TYPE)
    return Contents(path, table, calls, forms, model, step, sealed=True, datasets=datasets)


def _call_groups(group: h5py.Group) -> Iterator[h5py.Group]:
    """All groups below `group` that are calls: they have an op."""
    for name in group:
        link = group.get(name, getlink=True)
        if name == schema.INDEX_GROUP or not isinstance(link, h5py.HardLink):
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
    told: dict[str, Any] = {
        name: _text(group[f"_{name}"][()] if f"_{name}" in group else group.attrs.get(name, ""))
        for name in CALL_FIELDS
    }
    told |= {"call": _number(group, "call"), "order": _number(group, "order")}
    told["origins"] = json.loads(told["origins"] or "[]")
    told["phase"] = told["phase"] or "forward"
    return [told[name] for name in CALL_FIELDS]


_READERS: dict[str, Callable[[Any], Any]] = {  # of an attribute, by the type of its field
    "str": _text,
    "int": int,
    "Kept": lambda value: Kept(_text(value)),
    "tuple[int, ...]": lambda sizes: schema.checked_sizes(list(map(int, sizes))),
}


def _form(dataset: h5py.Dataset, name: str) -> Form:
    """The form of a dataset by its attributes; what it does not say is as for a plain tensor."""
    attrs = {"dtype": dataset.dtype.name, "shape": dataset.shape or (), **dataset.attrs}
    told = {
        field.name: _READERS[str(field.type)](attrs[field.name])
        for field in fields(Form)
        if field.metadata and field.name in attrs
    }
    stored = _stored(dataset) if told.get("kept") is Kept.SUMMARY else None
    form = Form(unescaped(name), stored=stored, **told)
    if form.dtype not in DTYPES and form.kept is Kept.FULL:
        raise ValueError(f"{dataset.name} has elements of an unknown type {form.dtype}")
    return form


def _stored(dataset: h5py.Dataset) -> Stored:
    """What stands for the elements of a summarised value, and its attributes."""
    others = tuple(
        (name, value.item() if isinstance(value, np.generic) and value.dtype.kind in "iuf"
         else _text(value))
        for name, value in dataset.attrs.items() if name not in schema.DATASET_ATTRS
    )  # fmt: skip
    return Stored(dataset.dtype.name, tuple(map(int, dataset.shape)), others)
