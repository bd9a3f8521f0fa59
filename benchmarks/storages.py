"""Ways to keep numbered arrays on a disk: dumpcmp's, and others to hold it against."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.errors import ArchiveError, DumpcmpError
from tests.archive.values import key, put

STEP = 50  # arrays of a step of a run, or of a directory

Floats = NDArray[Any]  # of float64
Numbered = Iterator[tuple[int, Floats]]
Done = Callable[[int], None]


@dataclass(frozen=True)
class Storage:
    """One of them. `errors` are those of its own that say that something cannot be read."""

    name: str
    write: Callable[[Path, Numbered, Done], None]  # tells `done` of each array that is finished
    read: Callable[[Path], dict[int, Floats]]
    errors: tuple[type[Exception], ...]


def _write_dumpcmp(path: Path, arrays: Numbered, done: Done) -> None:
    with ArchiveWriter(path) as sink:
        for number, array in arrays:
            put(sink, key(f"op{number}", step=number // STEP), array, number)
            done(number)


def _read_dumpcmp(path: Path) -> dict[int, Floats]:
    archive = Archive(path)
    archive.checks_digests = True
    found = {int(r.key.op[2:]): archive.load(r).bits for r in archive.values()}
    if archive.complete and archive.problems:  # a run that is told to be whole, and is not
        raise ArchiveError(archive.problems[0])
    return found


def _write_hdf5(path: Path, arrays: Numbered, done: Done) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        for number, array in arrays:
            file.create_dataset(str(number), data=array, fletcher32=True, chunks=array.shape)
            file.flush()
            done(number)


def _read_hdf5(path: Path) -> dict[int, Floats]:
    with h5py.File(path) as file:
        return {int(name): np.asarray(file[name][()]) for name in file}


def _write_zarr(path: Path, arrays: Numbered, done: Done) -> None:
    import zarr
    from zarr.codecs import Crc32cCodec

    root = zarr.create_group(path)
    for number, array in arrays:
        root.create_array(str(number), data=array, compressors=[Crc32cCodec()])
        done(number)


def _read_zarr(path: Path) -> dict[int, Floats]:
    import zarr

    root = zarr.open_group(path, mode="r")
    return {int(name): np.asarray(array[:]) for name, array in root.arrays()}


def _write_sqlite(path: Path, arrays: Numbered, done: Done) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("create table arrays (number integer primary key, content blob)")
        for number, array in arrays:
            with file:
                file.execute("insert into arrays values (?, ?)", (number, array.tobytes()))
            done(number)


def _read_sqlite(path: Path) -> dict[int, Floats]:
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute("select number, content from arrays")
        return {number: np.frombuffer(content) for number, content in rows}


def _write_safetensors(path: Path, arrays: Numbered, done: Done) -> None:
    """A file for each array, as it cannot be added to one."""
    path.mkdir()
    for number, array in arrays:
        save_file({str(number): array}, path / f"{number}.safetensors")
        done(number)


def _read_safetensors(path: Path) -> dict[int, Floats]:
    files = sorted(path.glob("*.safetensors"))
    return {int(name): array for file in files for name, array in load_file(file).items()}


def storages() -> Iterator[Storage]:
    """All that are installed."""
    yield Storage("dumpcmp", _write_dumpcmp, _read_dumpcmp, (DumpcmpError,))
    hdf5: tuple[Any, ...] = (OSError, KeyError, RuntimeError, ValueError)  # it names none
    yield Storage("h5py", _write_hdf5, _read_hdf5, hdf5)
    try:
        import zarr  # now, or each process that is forked would
    except ImportError:
        pass
    else:
        own = (zarr.errors.BaseZarrError, FileNotFoundError, ValueError)
        yield Storage("zarr", _write_zarr, _read_zarr, own)
    yield Storage("SQLite", _write_sqlite, _read_sqlite, (sqlite3.Error,))
    yield Storage("safetensors", _write_safetensors, _read_safetensors, (SafetensorError,))
