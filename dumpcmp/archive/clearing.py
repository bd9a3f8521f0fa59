"""Removes what steps shared once they do so no more."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from dumpcmp.archive.paths import (
    models_in,
    moved_to,
    parts_in,
    rank_directories,
    read_run,
    shared_in,
    steps_in,
    writer_lives,
)
from dumpcmp.archive.read.part_index import read_index
from dumpcmp.archive.read.remote import opened
from dumpcmp.archive.schema import SHARED, SHARED_DIRECTORY
from dumpcmp.archive.stores.ranges import forget_below
from dumpcmp.archive.stores.urls import RemotePath
from dumpcmp.nouns.errors import ArchiveError


def clear_shared(root: Path) -> int:
    """Remove the shared parts that no step leads to any more, of runs that have ended; their bytes.

    One step of a model that cannot be read keeps all of them, and so does one that was moved away.
    """
    freed = 0
    if isinstance(root, RemotePath):  # what was read of it before is not what is there now
        forget_below(root.store, root.key)
        root.refresh()
    for directory in rank_directories(root):
        is_over = not writer_lives(read_run(directory), directory)
        is_over = is_over and not moved_to(directory)
        for model in models_in(directory) if is_over else ():
            held = shared_in(model)
            wanted = _shared_by(model) if held else set()
            for number in () if wanted is None else held.keys() - wanted:
                freed += held[number].stat().st_size
                _remove_part(held[number])
            if held and not shared_in(model) and not isinstance(model, RemotePath):
                with suppress(OSError):  # something else lies there too
                    (model / SHARED_DIRECTORY).rmdir()
    return freed


def _remove_part(part: Path) -> None:
    if isinstance(part, RemotePath):
        part.store.remove(part.key)
        part.refresh()
    else:
        part.unlink()


def _shared_by(model: Path) -> set[int] | None:
    """The shared parts that steps of a model lead to; None where not all of them can tell."""
    found: set[int] = set()
    for step in steps_in(model).values():
        for part in parts_in(step).values():
            try:
                with opened(part) as file:
                    contents = read_index(file)
            except ArchiveError:
                return None
            if contents is None:
                return None
            numbers = contents.rows["part"]
            found.update(np.unique(numbers[numbers >= SHARED]).tolist())
    return found
