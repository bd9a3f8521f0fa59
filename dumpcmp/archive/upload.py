"""Uploads an archive into a store as its parts are sealed; run.json says last that it is whole.

What was uploaded is read back and held against its digest. A journal beside the parts says what is
there already, so that an upload that was cut short goes on where it stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xxhash import xxh3_128

from dumpcmp.archive.paths import (
    MOVED,
    append_own,
    models_in,
    moved_to,
    no_archive,
    own_bytes,
    own_file,
    parts_in,
    rank_directories,
    read_run,
    run_text,
    shared_in,
    steps_in,
    writer_lives,
)
from dumpcmp.archive.rewrite import is_sealed
from dumpcmp.archive.schema import MANIFEST_FILE, RUN_FILE
from dumpcmp.archive.stores.store import Store
from dumpcmp.archive.stores.urls import RemotePath, here, place
from dumpcmp.nouns.budgets import MANIFEST, RUN
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.files import write_whole

JOURNAL = ".uploaded"  # in a rank's directory: a line for each file that is in the store
_LARGEST_JOURNAL = 1 << 30  # bytes
PAUSE = 0.5  # seconds between looks at a run that goes on
_PIECE = 8 << 20  # bytes read back at once


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What an upload came to."""

    url: str
    num_files: int = 0
    nbytes: int = 0
    num_removed: int = 0  # local copies that made room
    left: tuple[str, ...] = ()  # what is not in the store, and why

    @property
    def is_whole(self) -> bool:
        """Whether all of the archive is in the store."""
        return not self.left


def check_free(url: str | Path, name: str, *, overwrite: bool) -> None:
    """Raise where the store holds a run of the rank `name` already; remove that if told to."""
    directory = _remote(url) / name
    directory.refresh()
    found = list(directory.store.below(directory.key))
    if found and not overwrite:
        raise ArchiveError(
            f"{directory} already holds a run", hint="choose another URL, or give --overwrite"
        )
    for each in sorted(found, key=lambda each: each != RUN_FILE):  # first it is no longer whole
        directory.store.remove((directory / each).key)
    directory.refresh()


def upload(
    spool: str | Path,
    url: str | Path,
    *,
    follow: bool = False,
    rank: int | None = None,
    spool_limit: int | None = None,
    overwrite: bool = False,
    tell: Callable[[Uploaded], None] | None = None,
) -> Uploaded:
    """Upload the archive at `spool` to `url`, what is there already left out.

    With `follow` the work goes on until the run that writes it has ended. Of several ranks, `rank`
    alone is uploaded. Parts that are in the store are removed here while those that are left take
    more than `spool_limit` bytes.
    """
    root = here(spool, "uploaded from")
    ranks = {r: path for path, (_, r) in rank_directories(root).items() if rank in (None, r)}
    if not ranks:
        raise no_archive(root)
    rooms = [_Room(path, _remote(url) / path.name, spool_limit) for path in ranks.values()]
    for room in rooms:
        room.begin(overwrite=overwrite)
    while True:
        going = [room for room in rooms if not room.advance()]
        done = _added(str(_remote(url)), rooms)
        if tell is not None:
            tell(done)
        if not going or not follow:
            return done
        time.sleep(PAUSE)


def _remote(url: str | Path) -> RemotePath:
    found = place(url)
    if not isinstance(found, RemotePath):
        raise ArchiveError(f"{found} is no URL of a store", hint="give one such as s3://bucket/run")
    return found


def _added(url: str, rooms: list[_Room]) -> Uploaded:
    return Uploaded(
        url,
        sum(room.num_files for room in rooms),
        sum(room.nbytes for room in rooms),
        sum(room.num_removed for room in rooms),
        tuple(left for room in rooms for left in room.left),
    )


class _Room:
    """One rank's directory, here and in the store."""

    def __init__(self, directory: Path, url: RemotePath, limit: int | None) -> None:
        self.directory, self.url, self.limit = directory, url, limit
        self.store: Store = url.store
        self.left: list[str] = []
        self.num_files = self.nbytes = self.num_removed = 0
        self._done: dict[str, list[int | str]] = {}

    def begin(self, *, overwrite: bool) -> None:
        """Find what an earlier upload of this run has done; refuse to mix it with another run."""
        self.url.refresh()
        there, ours = read_run(self.url), read_run(self.directory)
        if there and there.get("started") == ours.get("started"):
            self._done = self._journal()
            return
        if place := moved_to(self.directory):
            raise ArchiveError(
                f"parts of {self.directory} were moved to {place}",
                hint="upload the others to the same place",
            )
        if self.store.is_directory(self.url.key):
            check_free(self.url.parent, self.url.name, overwrite=overwrite)
        (self.directory / JOURNAL).unlink(missing_ok=True)
        opening = {**ours, "complete": False}
        self.store.write((self.url / RUN_FILE).key, run_text(opening).encode())

    def _journal(self) -> dict[str, list[int | str]]:
        """What the store has, as far as it still lists it."""
        told = own_bytes(self.directory / JOURNAL, _LARGEST_JOURNAL) or b""
        lines = told.decode(errors="replace").splitlines()
        listed = {name: facts for name, *facts in map(json.loads, filter(_is_whole, lines))}
        there = set(self.store.below(self.url.key))
        for name in listed.keys() - there:
            if not (self.directory / name).exists():
                raise ArchiveError(
                    f"{self.url / name} was uploaded and removed here, and is not in the store",
                    hint="dump again",
                )
        return {name: facts for name, facts in listed.items() if name in there}

    def advance(self) -> bool:
        """Upload what can be, and say whether nothing more will come."""
        facts = read_run(self.directory)
        ended = not writer_lives(facts, self.directory)
        self.left = []
        for path in self._files():
            name = path.relative_to(self.directory).as_posix()
            if path.suffix == ".h5" and not is_sealed(path):
                self.left.append(f"{path} is not sealed")
            elif not self._has(name, path):
                self._upload(name, path)
                self._make_room()
        if not ended:
            self.left.append(f"{self.directory} is still being written")
        elif not self.left:
            for name, budget in ((MANIFEST_FILE, MANIFEST), (RUN_FILE, RUN)):
                content = own_bytes(self.directory / name, budget.nbytes)
                if content is not None:
                    self._verified_write(name, content)
        return ended

    def _files(self) -> Iterator[Path]:
        """Texts and parts, those that steps share first, then those of earlier steps."""
        for model in models_in(self.directory):
            for path in sorted(model.iterdir()):
                if not path.is_dir() and not path.name.startswith("."):
                    yield own_file(path)
            yield from map(own_file, shared_in(model).values())
            for step in steps_in(model).values():
                yield from map(own_file, parts_in(step).values())

    def _has(self, name: str, path: Path) -> bool:
        told = path.stat()
        return self._done.get(name, [])[:2] == [told.st_size, told.st_mtime_ns]

    def _upload(self, name: str, path: Path) -> None:
        """Copy one file and read it back; only then is it listed as being there."""
        told = path.stat()
        digest = put_checked(path, self.url / name)
        facts: list[int | str] = [told.st_size, told.st_mtime_ns, digest]
        append_own(self.directory / JOURNAL, json.dumps([name, *facts]) + "\n")
        self._done[name] = facts
        self.num_files += 1
        self.nbytes += told.st_size

    def _verified_write(self, name: str, content: bytes) -> None:
        key = (self.url / name).key
        self.store.write(key, content)
        if self.store.read(key, 0, len(content)) != content:
            raise ArchiveError(f"{self.url / name} is not what was written", hint="upload it again")

    def _make_room(self) -> None:
        """Remove parts that are in the store, the oldest first, while the others take too much."""
        if self.limit is None:
            return
        parts = [path for path in self._files() if path.suffix == ".h5"]
        total = sum(path.stat().st_size for path in parts)
        for path in parts:
            if total <= self.limit:
                return
            if self._has(path.relative_to(self.directory).as_posix(), path):
                write_whole(self.directory / MOVED, str(self.url.parent))
                total -= path.stat().st_size
                path.unlink()
                self.num_removed += 1


def put_checked(path: Path, url: RemotePath) -> str:
    """Copy a file into a store and read it back; its digest."""
    digest, running = digest_of(path), xxh3_128()
    url.store.put(url.key, path)
    for piece in pieces_of(url, path.stat().st_size):
        running.update(piece)
    if (found := running.hexdigest()) != digest:
        raise ArchiveError(
            f"{url} has the digest {found}, and {path} {digest}",
            hint="upload it again; nothing was removed here",
        )
    return digest


def pieces_of(url: RemotePath, nbytes: int) -> Iterator[bytes]:
    """The first `nbytes` of an object, piece by piece."""
    for start in range(0, nbytes, _PIECE):
        yield url.store.read(url.key, start, min(_PIECE, nbytes - start))


def _is_whole(line: str) -> bool:
    """Whether a line of the journal was written to its end."""
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, list) and len(found) == 4 and isinstance(found[0], str)


def digest_of(path: Path) -> str:
    """The digest of a file."""
    running = xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            running.update(piece)
    return running.hexdigest()
