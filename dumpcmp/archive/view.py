"""One HDF5 file that shows every value of an archive, whatever part holds its elements."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import h5py

from dumpcmp.archive.paths import dataset_path
from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.files import replacing
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Kept, Record


def write_view(archive: Archive, path: Path) -> int:
    """Write the view of `archive` to `path`, and return how many values it shows.

    Each value, also one that is an earlier value again, is a dataset of its own, such as
    ``rank0/Model/0/op#0/output.0``, whose attributes are dtype, op, call, slot, order, layout and
    rank. Elements stay where they are: it is a virtual dataset over that of a part, which HDF5
    finds by its path from `path`; what a part has in another form is copied. A value that was not
    kept is empty, and has its `problem`.
    """
    num_values = 0
    with replacing(path) as draft, h5py.File(draft, "w") as file, _Parts() as parts:
        for model in archive.models:
            for step in archive.steps(model):
                for records in archive.shards_at(model, step).values():
                    for record in records:
                        _show(file, parts, archive, record, path.parent)
                    num_values += len(records)
    return num_values


class _Parts(ExitStack):
    """The parts that are open."""

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[Path, h5py.File] = {}

    def dataset(self, part: Path, names: list[str]) -> h5py.Dataset | None:
        """The first of `names` that is a plain dataset of the file `part`."""
        if part not in self._files:
            self._files[part] = self.enter_context(h5py.File(part))
        found = (self._files[part].get(name) for name in names)
        return next((each for each in found if isinstance(each, h5py.Dataset)), None)


def _show(file: h5py.File, parts: _Parts, archive: Archive, record: Record, room: Path) -> None:
    key = record.key
    name = f"rank{record.rank}/{key.model}/{key.step}/{_path(key)}"
    if record.kept is not Kept.FULL or record.location is None:
        shown = file.create_dataset(name, data=h5py.Empty("f4"))
        shown.attrs["problem"] = record.problem or f"its {record.kept} is kept, and no elements"
    else:
        shown = _elements(file, name, parts, archive, record, room)
    told = {"dtype": record.dtype, "op": str(key.op), "call": key.call, "slot": str(key.slot),
            "order": record.order, "layout": record.layout, "rank": record.rank}  # fmt: skip
    shown.attrs.update(told)


def _elements(
    file: h5py.File, name: str, parts: _Parts, archive: Archive, record: Record, room: Path
) -> h5py.Dataset:
    part = record.location.part if record.location else Path()
    names = [_path(key) for key in (record.key, record.same_as) if key is not None]
    held = parts.dataset(part, names) if part.is_file() else None
    if held is None or held.shape != record.shape or not record.shape:
        return file.create_dataset(name, data=archive.load(record).bits)
    layout = h5py.VirtualLayout(held.shape, held.dtype)
    layout[...] = h5py.VirtualSource(os.path.relpath(part, room), held.name, held.shape, held.dtype)
    return file.create_virtual_dataset(name, layout)


def _path(key: Key) -> str:
    return dataset_path(key.op, key.call, key.slot)
