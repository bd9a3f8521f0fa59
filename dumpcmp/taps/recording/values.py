"""Hands the values of a step to the Sink: each one's bytes once, a link where they repeat."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Kept, Record, Sink, Source, Stored
from dumpcmp.nouns.selection import Tap
from dumpcmp.nouns.value import DTYPES
from dumpcmp.taps.recording.plain import Plain, plain_of
from dumpcmp.taps.recording.sources import DeviceSource, HostSource, Stagings, digest_of

_DTYPES = {getattr(torch, name): name for name in DTYPES}


class Condensed(Protocol):
    """What is kept in place of a tensor: its numbers, on the tensor's own device."""

    @property
    def stored(self) -> Stored: ...

    @property
    def numbers(self) -> Tensor:
        """The numbers, which nobody else writes to."""
        ...

    @property
    def digest(self) -> str:
        """Of the tensor's bytes, where they were read on the host; else empty."""
        ...

    @property
    def source(self) -> Source | None:
        """What brings the numbers to the host, where they know a way of their own."""
        ...


# Gives what is kept of a tensor that lies over the mesh as the layout says, or None: all of it.
Condense = Callable[[Key, Tensor, str], Condensed | None]


@dataclass(slots=True)
class Counts:
    """What a capture has seen so far, for the live line and the summary at the end."""

    steps: int = 0
    calls: int = 0
    values: int = 0
    links: int = 0
    nbytes: int = 0


class Outlet:
    """Where all that a capture selects goes, from one thread at a time."""

    def __init__(self, sink: Sink, tap: Tap, rank: int = 0) -> None:
        self.sink = sink
        self.tap = tap
        self.rank = rank
        self.counts = Counts()
        self.ops: set[str] = set()  # all ops that ran, also those not selected
        self.lacking: list[str] = []  # what this torch has not, and what is not recorded for it
        self.lock = threading.RLock()
        self.stagings = Stagings()
        self.condense: Condense | None = None  # takes Summaries, where they are all that is kept

    def call(self, call: Call) -> None:
        with self.lock:
            self.counts.calls += 1
            self.sink.call(call)


@dataclass(slots=True)
class _Seen:
    key: Key
    version: int | None  # None: an inference tensor, which has none
    digest: str  # empty: on a GPU, where reading the bytes back would stop the program


class Values:
    """The values of one step, known by storage, place in it, geometry and version."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._seen: dict[tuple[Any, ...], _Seen] = {}
        self._storages: dict[int, StorageWeakRef] = {}

    def put(
        self,
        key: Key,
        order: int,
        tensor: Tensor,
        same_as: Key | None = None,
        fresh: bool = False,
        seen_in: str = "",
    ) -> Key:
        """Record one value: its bytes, or a link to where this step stored the very same.

        Generated code reuses memory without a word to torch: its values are `fresh`, never
        taken for one that lay there before. Returns the Key that the bytes are stored under.
        """
        plain = plain_of(tensor)._replace(seen_in=seen_in) if seen_in else plain_of(tensor)
        outlet = self._outlet
        with outlet.lock:
            outlet.counts.values += 1
            if plain.problem:
                outlet.sink.put(self._record(key, order, plain), None)
            elif same_as is not None:
                outlet.counts.links += 1
                outlet.sink.put(self._record(key, order, plain, same_as), None)
            else:
                return self._store(key, order, plain, fresh)
        return same_as or key

    def _store(self, key: Key, order: int, plain: Plain, fresh: bool) -> Key:
        tensor, outlet = plain.tensor, self._outlet
        storage = tensor.untyped_storage()
        place = (storage._cdata, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        version = None if tensor.is_inference() else tensor._version
        seen = self._seen.get(place)
        if seen is not None and not fresh and _is_still(seen, tensor, version):
            outlet.counts.links += 1
            outlet.sink.put(self._record(key, order, plain, seen.key), None)
            return seen.key
        if storage._cdata not in self._storages:  # holding it keeps its address from being reused
            self._storages[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        condensed = outlet.condense(key, tensor, plain.layout) if outlet.condense else None
        if condensed is None:
            source = self._source(tensor, own=False)
            record = self._record(key, order, plain)
        else:
            source = condensed.source or self._source(condensed.numbers, own=True)
            record = self._record(key, order, plain, None, Kept.SUMMARY, condensed.stored)
        outlet.counts.nbytes += source.nbytes
        outlet.sink.put(record, source)
        digest = getattr(source, "digest", "") if condensed is None else condensed.digest
        self._seen[place] = _Seen(key, version, digest)
        return key

    def _source(self, tensor: Tensor, own: bool) -> Source:
        if tensor.device.type == "cpu":
            return HostSource(tensor)
        return DeviceSource(tensor, self._outlet.stagings, own)

    def _record(
        self,
        key: Key,
        order: int,
        plain: Plain,
        same_as: Key | None = None,
        kept: Kept = Kept.FULL,
        stored: Stored | None = None,
    ) -> Record:
        tensor, problem = plain.tensor, plain.problem
        return Record(
            key,
            order,
            _DTYPES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch."),
            () if problem and tensor.is_nested else tuple(tensor.shape),
            () if problem else tensor.stride(),
            0 if problem else int(tensor.storage_offset()),
            _device_name(tensor.device),
            self._outlet.rank,
            plain.layout,
            same_as,
            Kept.NOTHING if problem else kept,
            problem,
            stored=stored,
            seen_in=plain.seen_in,
        )


@cache
def _device_name(device: torch.device) -> str:
    return str(device)


def _is_still(seen: _Seen, tensor: Tensor, version: int | None) -> bool:
    """Whether `tensor` holds what it held when it was seen.

    The version counter misses writes through ``.data`` or a numpy alias, so the bytes decide
    wherever they can be read without stopping the program.
    """
    if seen.version != version:
        return False
    if seen.digest:
        return digest_of(tensor) == seen.digest
    return version is not None
