"""A store through fsspec: what is in it, and ranges of bytes out of it, asked for until they come.

Credentials, endpoints and regions are the libraries' own affair: their files and variables.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from dumpcmp.archive.stores.lately import LatelyRead
from dumpcmp.nouns.errors import ArchiveError

R = TypeVar("R")

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "hf": "hf"}  # all others: remote
MOST_TRIES = 6
FIRST_PAUSE = 0.1  # seconds before the second try; twice as long before each further one
MOST_AT_ONCE = 16  # requests under way
LARGEST_WHOLE = 64 << 20  # bytes of a file that is read at once
_FINAL = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError,
          NotImplementedError)  # fmt: skip
_CHANGES = ("ETag", "etag", "generation", "md5", "md5Hash", "sha256", "blob_id", "mtime",
            "LastModified", "last_modified", "updated", "created")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ObjectTold:
    """What a store tells of an object: its size, and something that changes when it does."""

    nbytes: int
    identity: str = ""


@dataclass(slots=True)
class Meter:
    """What was asked of a store: requests for bytes, the bytes that came, and tries that failed."""

    num_requests: int = 0
    nbytes: int = 0
    num_failed: int = 0
    _lock: Lock = field(default_factory=Lock)

    def count(self, *, requests: int = 0, nbytes: int = 0, failed: int = 0) -> None:
        with self._lock:  # several threads ask at once
            self.num_requests += requests
            self.nbytes += nbytes
            self.num_failed += failed


class Store:
    """All that lies under one scheme: listed, read by ranges, written whole."""

    def __init__(self, scheme: str, system: Any) -> None:
        self.scheme, self.system = scheme, system
        self.meter = Meter()
        self._snapshots: dict[str, Snapshot] = {}
        self.held = LatelyRead()

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """What asks for several ranges at once."""
        return ThreadPoolExecutor(MOST_AT_ONCE, "dumpcmp-store")

    @cached_property
    def _as_asked(self) -> dict[str, str]:
        """What keeps a library from reading ahead: those without ranges of their own read files."""
        from fsspec.spec import AbstractFileSystem

        own = type(self.system).cat_file is not AbstractFileSystem.cat_file
        return {} if own or self.system.async_impl else {"cache_type": "none"}

    def key(self, url: str) -> str:
        """What the store calls `url`."""
        if self.scheme.startswith("http"):
            return quote(url, safe="/:@?&=+,~")
        return str(self.system._strip_protocol(url)).rstrip("/")

    def take_snapshot(self, key: str) -> Snapshot:
        """List all that lies below `key`, in one go."""
        self.system.invalidate_cache()
        found = self.trying(f"list {key}", lambda: self._found(key))
        for other in [each for each in self._snapshots if _overlap(each, key)]:
            del self._snapshots[other]
        self._snapshots[key] = Snapshot.of(key, found, is_quoted=self.scheme.startswith("http"))
        return self._snapshots[key]

    def _found(self, key: str) -> Mapping[str, Any]:
        found: dict[str, Any] = self.system.find(key, detail=True)
        return found

    def _snapshot(self, key: str) -> tuple[Snapshot, str]:
        """The listing that has `key`, and the name that it has there."""
        for root, snapshot in self._snapshots.items():
            if key == root or key.startswith(f"{root}/"):
                return snapshot, snapshot.name(key)
        return self.take_snapshot(key), ""

    def children(self, key: str) -> list[str]:
        """The names right below `key`."""
        snapshot, name = self._snapshot(key)
        return sorted(snapshot.children.get(name, ()))

    def below(self, key: str) -> Iterator[str]:
        """The names of all objects below `key`, from there."""
        snapshot, name = self._snapshot(key)
        start = f"{name}/" if name else ""
        return (each.removeprefix(start) for each in snapshot.objects if each.startswith(start))

    def is_directory(self, key: str) -> bool:
        snapshot, name = self._snapshot(key)
        return name in snapshot.children

    def is_object(self, key: str) -> bool:
        snapshot, name = self._snapshot(key)
        return name in snapshot.objects

    def told_of(self, key: str) -> ObjectTold:
        """Size and identity of the object; FileNotFoundError where there is none."""
        snapshot, name = self._snapshot(key)
        if name not in snapshot.objects:
            raise FileNotFoundError(2, "no such object", key)
        told = snapshot.objects[name]
        return told if told.nbytes >= 0 else snapshot.know(name, self.asked(key))

    def asked(self, key: str) -> ObjectTold:
        """The same as the store tells it now."""
        told = _told(self.trying(f"ask for {key}", lambda: self.system.info(key)))
        if told.nbytes < 0:
            raise ArchiveError(
                f"the store does not say how long {key} is", hint="read a local copy of it"
            )
        return told

    def read_whole(self, key: str) -> bytes:
        """A small object."""
        return self.read(key, 0, self.told_of(key).nbytes)

    def read(self, key: str, start: int, nbytes: int) -> bytes:
        """Exactly `nbytes` of the object, from `start`."""
        if not nbytes:
            return b""

        def ask() -> bytes:
            self.meter.count(requests=1)
            content: bytes = self.system.cat_file(
                key, start=start, end=start + nbytes, **self._as_asked
            )
            self.meter.count(nbytes=len(content))
            if len(content) != nbytes:
                raise OSError(f"{len(content)} bytes came where {nbytes} were asked for")
            return content

        return self.trying(f"read {nbytes} bytes at {start} of {key}", ask)

    def check_writable(self) -> None:
        """ArchiveError where nothing can be written: web servers are read from."""
        if self.scheme.startswith("http"):
            raise ArchiveError(
                f"{self.scheme}:// is only read from, and nothing is written there",
                hint="write to a path of this machine, or to a store such as s3://",
            )

    def put(self, key: str, file: Path) -> None:
        """Copy a local file to `key`; nobody reads it before it is whole."""
        self.check_writable()
        self.trying(f"write {key}", lambda: self.system.put_file(str(file), key))

    def write(self, key: str, content: bytes) -> None:
        """Write a small object whole."""
        self.check_writable()
        self.trying(f"write {key}", lambda: self.system.pipe_file(key, content))

    def copy(self, key: str, other: str) -> None:
        """Copy an object inside of the store; nobody reads the copy before it is whole."""
        self.check_writable()
        self.trying(f"copy {key} to {other}", lambda: self.system.cp_file(key, other))

    def remove(self, key: str) -> None:
        """Remove an object."""
        self.check_writable()
        self.trying(f"remove {key}", lambda: self.system.rm_file(key))

    def opened(self, key: str) -> Any:
        """The object as a file that is read in blocks."""
        return self.trying(f"open {key}", lambda: self.system.open(key, "rb", block_size=1 << 16))

    def trying(self, what: str, ask: Callable[[], R]) -> R:
        """What `ask` gives, asked again after ever longer pauses; ArchiveError in the end."""
        for number in range(MOST_TRIES):
            try:
                return ask()
            except _FINAL as error:
                raise _unreachable(self.scheme, what, error) from error
            except Exception as error:  # each library has errors of its own
                self.meter.count(failed=1)
                if number + 1 == MOST_TRIES:
                    raise _unreachable(self.scheme, what, error) from error
                time.sleep(FIRST_PAUSE * 2**number * random.uniform(0.5, 1))
        raise AssertionError("a try either gives something or raises")


def _unreachable(scheme: str, what: str, error: Exception) -> ArchiveError:
    said = next(filter(None, str(error).splitlines()), type(error).__name__)
    return ArchiveError(
        f"{scheme}: cannot {what}: {type(error).__name__}: {said}",
        hint="see that the store can be reached, and that its library finds your credentials",
    )


@dataclass
class Snapshot:
    """What lay below a key when it was listed: objects by name, and what is in directories."""

    root: str
    is_quoted: bool
    objects: dict[str, ObjectTold] = field(default_factory=dict)
    children: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, root: str, found: Mapping[str, Any], *, is_quoted: bool) -> Snapshot:
        snapshot = cls(root, is_quoted)
        for key, told in found.items():
            name = _checked(snapshot.name(key))
            snapshot.objects[name] = _told(told)
            while name:
                name, _, last = name.rpartition("/")
                snapshot.children.setdefault(name, set()).add(last)
        return snapshot

    def name(self, key: str) -> str:
        """The name of `key` from the root."""
        name = key[len(self.root) :].strip("/")
        return unquote(name) if self.is_quoted else name

    def know(self, name: str, told: ObjectTold) -> ObjectTold:
        """Note what was asked for later."""
        self.objects[name] = told
        return told


def _checked(name: str) -> str:
    """`name` of an object, which becomes that of a file; one that leads elsewhere is refused."""
    if "\0" in name or not {".", ".."}.isdisjoint(name.split("/")):
        raise ArchiveError(
            f"the store lists an object {name!r}, whose name leads out of where it lies",
            hint="remove it there: dumpcmp writes none of that kind",
        )
    return name


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _told(found: Mapping[str, Any]) -> ObjectTold:
    size = found.get("size")
    changing = next((str(found[name]) for name in _CHANGES if found.get(name)), "")
    return ObjectTold(-1 if size is None else int(size), changing)


_STORES: dict[tuple[int, str], Store] = {}


def store_of(scheme: str) -> Store:
    """The store that URLs with `scheme` lead to, opened once in this process."""
    here = (os.getpid(), scheme)  # a forked child must open its own
    if here not in _STORES:
        _STORES[here] = Store(scheme, _system(scheme))
    return _STORES[here]


def _system(scheme: str) -> Any:
    extra = EXTRAS.get(scheme, "remote")
    try:
        fsspec = import_module("fsspec")
        return fsspec.filesystem(scheme)
    except ImportError as error:
        raise ArchiveError(
            f"{scheme}:// needs a library that is not installed: {error}",
            hint=f"pip install 'dumpcmp[{extra}]'",
        ) from error
    except ValueError as error:
        raise ArchiveError(f"{scheme}:// is no store that fsspec knows: {error}") from error
