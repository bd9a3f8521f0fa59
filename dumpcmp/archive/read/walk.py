"""A part that dumpcmp did not write, or that a tool rewrote: read by its groups, through h5py."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive import schema
from dumpcmp.archive.paths import dataset_path, unescaped
from dumpcmp.archive.read.contents import Contents, ListedCalls, known_form, read_forms
from dumpcmp.archive.read.partfile import LARGEST_READ
from dumpcmp.archive.read.remote import opened
from dumpcmp.archive.schema import CALL_FIELDS, Form
from dumpcmp.archive.stores.urls import RemotePath
from dumpcmp.nouns.budgets import MOST_INFLATED
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.record import Kept, Location, Stored
from dumpcmp.nouns.sampled import EVENLY, ROWS
from dumpcmp.nouns.value import DTYPES, Dtype

_SMALL = 64 << 20  # bytes that may be unpacked from nothing, as fill values are
_LEADS_OUT = "its elements are said to lie outside of the archive, where nothing is read"


class _NotSharedError(Exception):
    """A value that steps share is not where a part says."""


_TROUBLE = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError)


def _hdf5(path: Path) -> h5py.File:
    """The part as HDF5; in a store it is read in blocks, as the library walks through it."""
    if isinstance(path, RemotePath):
        return h5py.File(path.open("rb"), "r")
    return h5py.File(path, "r", locking=False)


def walk(path: Path, model: str, step: int, part: int) -> Contents:
    """The contents of `path` by its groups: the names and attributes that docs/format.md tells."""
    try:
        with _hdf5(path) as file:
            if isinstance(file.get(schema.INDEX_GROUP, getlink=True), h5py.HardLink):
                return _indexed(file, path, model, step)
            return _contents(file, path, model, step, part)
    except _TROUBLE as error:
        raise ArchiveError(
            f"{path} cannot be read as HDF5: {error}", hint="dumpcmp audit says what is left of it"
        ) from error


def read_dataset(location: Location, dtype: Dtype, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """The raw elements of a dataset that cannot be mapped: chunked or compressed."""
    if math.prod(shape) * dtype.nbytes != location.nbytes:
        raise ArchiveError(f"{location.part}: {location.dataset} has not the size of its shape")
    try:
        with _hdf5(location.part) as file:
            found = _own(file, location.dataset)
            if found is None:
                raise ValueError("its elements are not in the archive")
            if location.nbytes > max(_SMALL, MOST_INFLATED * found.id.get_storage_size()):
                raise ValueError(f"{location.nbytes} bytes cannot be packed into what it has")
            bits = np.empty(shape, dtype.storage)
            found.id.read(h5py.h5s.ALL, h5py.h5s.ALL, bits.view(np.uint8), found.id.get_type())
    except _TROUBLE as error:
        raise ArchiveError(f"{location.part}: cannot read {location.dataset}: {error}") from error
    return bits


def _indexed(file: h5py.File, path: Path, model: str, step: int) -> Contents:
    """The contents of a part that still has its index: it tells all but where the bytes lie now."""
    calls, forms = (json.loads(_index_text(file, name)) for name in ("calls", "forms"))
    rows = _index_dataset(file, "records")[...].astype(schema.ROW_TYPE)
    listed = ListedCalls(calls)
    contents = Contents(path, rows, listed, read_forms(path, forms), model, step, sealed=True)
    datasets: dict[int, str] = {}
    for row, (call, _, _, _, same, *_, nbytes, _) in enumerate(rows.tolist()):
        if call == schema.ABSENT or same != schema.NO_ROW:
            continue
        name = dataset_path(*contents.name(row))
        found = _own(file, name)
        if found is None:
            raise ValueError(f"{name}, which the index tells of, is not there")
        rows["header"][row], rows["offset"][row] = 0, found.id.get_offset() or 0
        if nbytes and not rows["offset"][row]:
            datasets[row] = found.name
    contents.datasets = datasets
    return contents


def _index_dataset(file: h5py.File, name: str) -> h5py.Dataset:
    found = _own(file, f"{schema.INDEX_GROUP}/{name}")
    if found is None or found.nbytes > LARGEST_READ:
        raise ValueError(f"its index has no {name}")
    return found


def _index_text(file: h5py.File, name: str) -> str:
    content = _index_dataset(file, name)[...]
    return _text(content.reshape(-1)[0])


def _contents(file: h5py.File, path: Path, model: str, step: int, part: int) -> Contents:
    calls: list[list[Any]] = []
    forms: list[Form] = []
    rows: list[tuple[Any, ...]] = []
    datasets: dict[int, str] = {}
    first: dict[tuple[Path, int], int] = {}  # file and address of a dataset -> its first row
    elsewhere: dict[int, tuple[Path, int]] = {}
    problems: dict[str, None] = {}
    with ExitStack() as others:
        for group in sorted(_call_groups(file), key=lambda group: _number(group, "order")):
            calls.append(_call(group))
            for name in group:
                try:
                    home, dataset = _resolved(group, name, path, others)
                except _NotSharedError as gone:
                    problems[f"{path}: {gone}"] = None
                    forms.append(Form(unescaped(name), kept=Kept.NOTHING, problem=str(gone)))
                    owner = len(calls) - 1, len(rows), _number(group, "order"), part
                    rows.append((*owner, schema.NO_ROW, 0, 0, 0, b""))
                    continue
                if dataset is None:
                    continue
                row, form = len(rows), _form(dataset, name)
                where = (home, h5py.h5o.get_info(dataset.id).addr)
                same = first.setdefault(where, row)
                dtype, shape = form.held
                known = DTYPES[dtype].nbytes if dtype in DTYPES else 0
                nbytes = 0 if dataset.shape is None else math.prod(shape) * known
                offset = dataset.id.get_offset() or 0
                if not _is_inside(dataset):
                    form, nbytes, offset = (
                        replace(form, kept=Kept.NOTHING, problem=_LEADS_OUT),
                        0,
                        0,
                    )
                if nbytes and not offset:
                    datasets[row] = dataset.name
                if home != path:
                    elsewhere[row] = home, offset
                forms.append(form)
                rows.append((
                    len(calls) - 1, row, _number(group, "order"), part,
                    schema.NO_ROW if same == row else same, 0, offset, nbytes,
                    _text(dataset.attrs.get("digest", b"")).encode(),
                ))  # fmt: skip
    table = np.array(rows, schema.ROW_TYPE)
    return Contents(
        path, table, ListedCalls(calls), forms, model, step, sealed=True, datasets=datasets,
        elsewhere=elsewhere, problems=tuple(problems),
    )  # fmt: skip


def _resolved(
    group: h5py.Group, name: str, path: Path, others: ExitStack
) -> tuple[Path, h5py.Dataset | None]:
    """The dataset `name` of a call and the part that has it: this one, or one beside it.

    Nothing else is followed: links by path may lead anywhere.
    """
    if name.startswith("_"):
        return path, None
    link = group.get(name, getlink=True)
    if isinstance(link, h5py.HardLink):
        found = group[name]
        return path, found if isinstance(found, h5py.Dataset) else None
    home = _home(link, path)
    if home is None:
        raise ValueError(f"{group.name}/{name} is a link that leads out of the archive")
    is_shared = home.parent != path.parent
    try:
        with opened(home):  # which is no link, and no pipe
            other = others.enter_context(_hdf5(home))
        found = _own(other, link.path)
    except (ArchiveError, *_TROUBLE) as error:
        if is_shared:
            raise _NotSharedError(f"its bytes should lie in {home}: {error}") from error
        raise
    if found is None and is_shared:
        raise _NotSharedError(f"its bytes should lie in {home}, which has no {link.path}")
    if found is None:
        raise ValueError(f"{group.name}/{name} leads to {link.path} of {home}, which is not there")
    return home, found


def _home(link: Any, path: Path) -> Path | None:
    """The part that a link of the part at `path` leads to: one beside it, or a shared one."""
    if not isinstance(link, h5py.ExternalLink):
        return None
    match = re.fullmatch(rf"(\.\./{schema.SHARED_DIRECTORY}/)?({schema.PART_FILE})", link.filename)
    if match is None:
        return None
    beside = path.parent.parent / schema.SHARED_DIRECTORY if match[1] else path.parent
    return beside / match[2]


def _own(file: h5py.File, path: str) -> h5py.Dataset | None:
    """The dataset at `path`, if hard links alone lead there and its elements are in `file`."""
    found: Any = file
    for word in path.strip("/").split("/"):
        if not isinstance(found, h5py.Group):
            return None
        if not isinstance(found.get(word, getlink=True), h5py.HardLink):
            return None
        found = found[word]
    return found if isinstance(found, h5py.Dataset) and _is_inside(found) else None


def _is_inside(dataset: h5py.Dataset) -> bool:
    """Whether the elements lie in the dataset's own file."""
    return not dataset.is_virtual and not dataset.id.get_create_plist().get_external_count()


def _call_groups(file: h5py.File) -> Iterator[h5py.Group]:
    """All groups of `file` that are calls: they have an op. A group is visited once."""
    waiting: list[h5py.Group] = [file]
    seen: set[int] = set()
    while waiting:
        group = waiting.pop()
        for name in group:
            link = group.get(name, getlink=True)
            if name == schema.INDEX_GROUP or not isinstance(link, h5py.HardLink):
                continue
            child = group[name]
            address = h5py.h5o.get_info(child.id).addr
            if not isinstance(child, h5py.Group) or address in seen:
                continue
            seen.add(address)
            waiting.append(child)
            if "op" in child.attrs:
                yield child


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
    return known_form(form)


def _stored(dataset: h5py.Dataset) -> Stored:
    """What stands for the elements of a summarised value, and its attributes."""
    others = tuple(
        (name, value.item() if isinstance(value, np.generic) and value.dtype.kind in "iuf"
         else _text(value))
        for name, value in dataset.attrs.items() if name not in schema.DATASET_ATTRS
    )  # fmt: skip
    dtype = _text(dataset.attrs["dtype"]) if (ROWS, EVENLY) in others else dataset.dtype.name
    return Stored(dtype, tuple(map(int, dataset.shape)), others)
