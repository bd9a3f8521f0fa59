"""Paths that are URLs: an archive in an object store is walked as one in a directory is."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from dumpcmp.archive.stores.store import Store, store_of
from dumpcmp.nouns.errors import ArchiveError

_URL = re.compile(r"(?P<chain>[a-z0-9]+::)?(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://.*")
_LOCAL = ("file", "local")


def place(path: str | os.PathLike[str]) -> Path:
    """Where `path` leads: a path of this machine, or, where it is a URL, one of a store.

    ``file://`` is a path of this machine, and read as any other.
    """
    match = _URL.match(path) if isinstance(path, str) else None
    if match is None:
        return path if isinstance(path, Path) else Path(path)
    url, scheme = match[0], match["scheme"].lower()
    if match["chain"]:
        raise ArchiveError(f"{url} is a chain of stores, which is not read", hint="give its last")
    if scheme in _LOCAL:
        return Path(unquote(urlsplit(url).path))
    return RemotePath(unquote(url) if scheme.startswith("http") else url)


def here(path: str | os.PathLike[str], done: str) -> Path:
    """Where `path` leads on this machine; ArchiveError for a URL: nothing is `done` in stores."""
    found = place(path)
    if isinstance(found, RemotePath):
        raise ArchiveError(
            f"{found} lies in a store, where nothing is {done}",
            hint="do that on the machine where it was dumped, or on a copy, and upload the outcome",
        )
    return found


def is_url(path: object) -> bool:
    """Whether `path` leads to a store."""
    return isinstance(path, RemotePath) or (
        isinstance(path, str) and isinstance(place(path), RemotePath)
    )


class RemotePath(PosixPath):
    """A URL with the face of a Path: what reading an archive asks of a Path, it answers.

    Its names come from one listing of the archive, taken when the archive is opened. It is no
    file of this machine, and refuses to be taken for one.
    """

    __slots__ = ()

    def __str__(self) -> str:
        scheme, *rest = self.parts
        return f"{scheme}//{'/'.join(rest)}"

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __fspath__(self) -> str:
        raise NotImplementedError(f"{self} is no file of this machine")

    @property
    def store(self) -> Store:
        """The store that it is in."""
        return store_of(self.parts[0].removesuffix(":"))

    @property
    def key(self) -> str:
        """What the store calls it."""
        return self.store.key(str(self))

    def refresh(self) -> None:
        """Ask the store anew what lies below this path."""
        self.store.take_snapshot(self.key)

    def absolute(self) -> RemotePath:
        return self

    def resolve(self, strict: bool = False) -> RemotePath:  # noqa: ARG002
        return self

    def iterdir(self) -> Iterator[RemotePath]:  # type: ignore[override]
        for name in self.store.children(self.key):
            yield self / name

    def glob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # type: ignore[override]
        """The files below that `pattern` fits."""
        for name in self.store.below(self.key):
            if PurePosixPath("/", name).match(pattern):
                yield self / name

    def exists(self, **_: Any) -> bool:
        return self.is_file() or self.is_dir()

    def is_dir(self, **_: Any) -> bool:
        return self.store.is_directory(self.key)

    def is_file(self, **_: Any) -> bool:
        return self.store.is_object(self.key)

    def is_symlink(self) -> bool:
        return False

    def stat(self, **_: Any) -> os.stat_result:
        """Size and identity, the latter as the number of the file."""
        told = self.store.told_of(self.key)
        number = int.from_bytes(told.identity.encode()[-8:], "little")
        return os.stat_result((stat.S_IFREG | 0o444, number, 0, 1, 0, 0, told.nbytes, 0, 0, 0))

    def lstat(self) -> os.stat_result:
        return self.stat()

    def open(self, mode: str = "rb", *_: Any, **__: Any) -> Any:
        """Read as a file: for what must be looked through and has no index."""
        if mode != "rb":
            return io.StringIO(self.read_text())
        return self.store.opened(self.key)

    def read_bytes(self) -> bytes:
        return self.store.read_whole(self.key)

    def read_text(self, encoding: str | None = None, errors: str | None = None, *_: Any) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")
