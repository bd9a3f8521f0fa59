"""Files and directories of stores, as copies on this machine: to be read, and to be written to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from dumpcmp.archive.schema import RUN_FILE
from dumpcmp.archive.stores.urls import RemotePath, place
from dumpcmp.archive.upload import digest_of, pieces_of, put_checked

SPOOL = "DUMPCMP_SPOOL"  # the variable: where what goes into stores is written first


@contextmanager
def spool_room() -> Iterator[Path]:
    """A directory that is gone after the block, where the user wants such."""
    with TemporaryDirectory(prefix="dumpcmp-", dir=os.environ.get(SPOOL)) as room:
        yield Path(room)


def copy_here(source: RemotePath, target: Path) -> None:
    """Copy an object, or all that lies below a directory, to `target`."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            for piece in pieces_of(source, source.stat().st_size):
                file.write(piece)
        return
    for name in list(source.store.below(source.key)):
        copy_here(source / name, target / name)


@contextmanager
def copied_here(path: str | Path) -> Iterator[Path]:
    """What lies at `path`, on this machine: itself, or while the block runs a copy of it."""
    found = place(path)
    if not isinstance(found, RemotePath):
        yield found
        return
    with spool_room() as room:
        copy_here(found, room / found.name)
        yield room / found.name


@contextmanager
def written_there(path: str | Path, *, with_old: bool = False) -> Iterator[Path]:
    """Where to write a file or a directory that shall lie at `path`, which may be of a store.

    What has changed there is copied into the store, and read back, where the block succeeds. The
    place is empty, unless it shall begin `with_old`, what lies at `path` now.
    """
    found = place(path)
    if not isinstance(found, RemotePath):
        yield found
        return
    found.store.check_writable()
    with spool_room() as room:
        local = room / found.name
        if with_old and found.exists():
            copy_here(found, local)
        old = _digests(local)
        yield local
        put_changed(local, found, old)


def put_changed(local: Path, url: RemotePath, old: dict[str, str]) -> None:
    """Copy into the store what is not as in `old`, digests by name; what says it is whole last."""
    found = _digests(local)
    for name, digest in sorted(found.items(), key=lambda item: item[0].endswith(RUN_FILE)):
        if old.get(name) != digest:
            put_checked(local / name if name else local, url / name if name else url)
    url.refresh()


def _digests(local: Path) -> dict[str, str]:
    """The digest of each file; that of a file itself has no name."""
    if local.is_file():
        return {"": digest_of(local)}
    files = sorted(path for path in local.rglob("*") if path.is_file())
    return {path.relative_to(local).as_posix(): digest_of(path) for path in files}
