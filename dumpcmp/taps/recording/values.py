"""Hands the values of a step to the Sink: each one's bytes once, a link where they repeat."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import UNWRITTEN, Call, Kept, Record, Sink, Source, Stored
from dumpcmp.nouns.selection import Tap
from dumpcmp.nouns.value import DTYPES
from dumpcmp.pytorch.names import NO_DISPATCH
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.recording.blanks import Blanks
from dumpcmp.taps.recording.sources import HostSource, digest_of
from dumpcmp.taps.recording.transfers import DeviceSource, Stagings
from dumpcmp.taps.recording.transforms import can_look_inside, held_by, outside

_DTYPES = {getattr(torch, name): name for name in DTYPES}


class Condensed(Protocol):
    """What is kept in place of a tensor: its numbers, on the tensor's own device."""

    @property
    def stored(self) -> Stored: ...  # what the numbers are

    @property
    def numbers(self) -> Tensor: ...  # which nobody else writes to

    @property
    def digest(self) -> str: ...  # of the tensor's bytes, where they were read on the host

    @property
    def source(self) -> Source | None: ...  # of the numbers, where they know a way of their own


# Gives what is kept of a tensor that lies over the mesh as the layout says, or None: all of it.
Condense = Callable[[Key, Tensor, str], Condensed | None]


class Weights(StrEnum):
    """How much is kept of parameters and buffers, which are recorded once a run."""

    NOTHING = "nothing"
    WHOLE = "whole"
    LIKE_OTHERS = "like others"  # as of any value, so that functions that take one link to it
    SUMMARY = "summary"


@dataclass(slots=True)
class Counts:
    """What a capture has seen so far, for the live line and the summary at the end."""

    steps: int = 0
    calls: int = 0
    values: int = 0
    links: int = 0
    nbytes: int = 0
    seconds: float = 0.0  # that the program spent in steps, what the capture took included


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
        self.condense_taped: Condense | None = None  # which a CUDA graph can take in, if any can
        self.graph_budget: int | None = None  # bytes of a device that CUDA graphs may fill for us
        self.weights = Weights.WHOLE if tap.weights else Weights.NOTHING
        self.weigh: Condense | None = None  # takes Summaries of parameters and buffers
        self.is_inert = (
            False  # in a forked child: the archive belongs to the process that opened it
        )
        _OUTLETS.add(self)

    @property
    def is_taped(self) -> bool:
        """Whether a CUDA graph is being captured, so that there are no values yet."""
        return False

    def forget(self) -> None:
        """Record nothing more: this is a forked child, which lacks the threads that hold locks."""
        self.is_inert, self.lock, self.stagings = True, threading.RLock(), Stagings()

    def call(self, call: Call) -> None:
        with self.lock:
            self.counts.calls += 1
            self.sink.call(call)


_OUTLETS: weakref.WeakSet[Outlet] = weakref.WeakSet()


def _after_fork() -> None:
    for outlet in list(_OUTLETS):
        outlet.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
        self._blanks = Blanks()

    def put(
        self,
        key: Key,
        order: int,
        tensor: Tensor,
        same_as: Key | None = None,
        fresh: bool = False,
        seen_in: str = "",
        unwritten: bool = False,
        by: Condense | Literal[False] | None = False,
    ) -> Key:
        """Record one value: its bytes, or a link to where this step stored the very same.

        Generated code reuses memory without a word to torch: its values are `fresh`, never
        taken for one that lay there before. Memory that is `unwritten` has no value, neither
        here nor wherever it is taken before somebody writes to it. Summaries are taken `by` what is
        given, or not at all if that is None. Returns the Key that the bytes are stored under.
        """
        plain = plain_of(tensor)._replace(seen_in=seen_in) if seen_in else plain_of(tensor)
        if plain.problem == WRAPPED and can_look_inside():
            with outside():
                held = held_by(tensor)
                if held is not None and held.tensor is not tensor:
                    return self.put(
                        key, order, held.tensor, same_as, fresh, held.seen_in, unwritten, by
                    )
        outlet = self._outlet
        if unwritten and not plain.problem:
            self._blanks.leave(plain.tensor)
            plain = plain._replace(problem=UNWRITTEN)
        with outlet.lock:
            outlet.counts.values += 1
            if plain.problem:
                outlet.sink.put(self._record(key, order, plain), None)
            elif same_as is not None:
                outlet.counts.links += 1
                outlet.sink.put(self._record(key, order, plain, same_as), None)
            else:
                return self._store(key, order, plain, fresh, outlet.condense if by is False else by)
        return same_as or key

    def put_weight(self, key: Key, order: int, tensor: Tensor, is_again: bool) -> None:
        """Record a parameter or buffer, as much of it as the outlet keeps of those.

        Of one that was recorded before and has changed, a Summary is enough to know it by.
        """
        outlet = self._outlet
        is_short = is_again and outlet.weights is not Weights.WHOLE
        if not (is_short or outlet.weights is Weights.SUMMARY) or outlet.weigh is None:
            weigh = outlet.weigh if outlet.condense else None
            self.put(key, order, tensor, by=None if outlet.weights is Weights.WHOLE else weigh)
            return
        plain = plain_of(tensor)
        with outlet.lock:
            held = None if plain.problem else outlet.weigh(key, plain.tensor, plain.layout)
            if held is None:
                self.put(key, order, tensor)
                return
            outlet.counts.values += 1
            outlet.counts.nbytes += self._condensed(key, order, plain, held)

    def _condensed(self, key: Key, order: int, plain: Plain, held: Condensed) -> int:
        """Hand on what is `held` of a value; gives the bytes of that."""
        source = held.source or self._source(held.numbers, own=True)
        record = self._record(key, order, plain, None, Kept.SUMMARY, held.stored)
        self._outlet.sink.put(record, source)
        return source.nbytes

    def _store(
        self, key: Key, order: int, plain: Plain, fresh: bool, condense: Condense | None
    ) -> Key:
        tensor, outlet = plain.tensor, self._outlet
        storage = tensor.untyped_storage()
        place = (storage._cdata, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        version = None if tensor.is_inference() else tensor._version
        if self._blanks.has(tensor):
            outlet.sink.put(self._record(key, order, plain._replace(problem=UNWRITTEN)), None)
            return key
        seen = self._seen.get(place)
        if seen is not None and not fresh and _is_still(seen, tensor, version):
            outlet.counts.links += 1
            outlet.sink.put(self._record(key, order, plain, seen.key), None)
            return seen.key
        if storage._cdata not in self._storages:  # holding it keeps its address from being reused
            self._storages[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        condensed = condense(key, tensor, plain.layout) if condense else None
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

    def filled(self, tensor: Tensor) -> None:
        """A function has written to all of `tensor`."""
        plain = plain_of(tensor)
        if not plain.problem:
            self._blanks.write(plain.tensor)

    def _source(self, tensor: Tensor, own: bool) -> Source:
        if tensor.is_cpu:
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
        dtype = _DTYPES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
        shape = () if problem and tensor.is_nested else tuple(tensor.shape)
        stride, offset = ((), 0) if problem else (tensor.stride(), int(tensor.storage_offset()))
        return Record(
            key, order, dtype, shape, stride, offset, _device_name(tensor.device),
            self._outlet.rank, plain.layout, same_as, Kept.NOTHING if problem else kept, problem,
            stored=stored, seen_in=plain.seen_in,
        )  # fmt: skip


class Plain(NamedTuple):
    """The tensor whose elements are recorded; `problem` says why there are none to record."""

    tensor: Tensor
    layout: str = ""
    problem: str = ""
    seen_in: str = ""


WRAPPED = "a tensor inside of a transform of torch.func has no elements of its own"
_PLAIN = (Tensor, nn.Parameter)


def plain_of(tensor: Tensor) -> Plain:
    """Unwrap `tensor`, without running any code of a tensor subclass."""
    layout = distributed.layout_of(tensor)
    if type(tensor) not in _PLAIN:
        if (held := distributed.unwrapped(tensor)) is not None:
            return Plain(*held)
        if getattr(type(tensor), "__torch_dispatch__", NO_DISPATCH) is not NO_DISPATCH:
            kind = type(tensor).__name__
            return Plain(tensor, problem=f"{kind} is a wrapper without elements of its own")
        with torch._C.DisableTorchFunctionSubclass():
            tensor = tensor.as_subclass(Tensor)
    if tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested:
        if tensor.is_meta:
            return Plain(tensor, problem="meta tensors have no elements")
        if problem := _unreadable(tensor):
            return Plain(tensor, problem=problem)
        if (tensor.dtype.is_complex and tensor.is_conj()) or tensor.is_neg():
            return Plain(tensor.detach().resolve_conj().resolve_neg(), layout)
        return Plain(tensor, layout)
    return Plain(tensor, problem=f"{_kind(tensor)} tensors have no dense bytes")


def _unreadable(tensor: Tensor) -> str:
    """Why the elements of a strided tensor are not where its shape says; empty where they are."""
    try:
        storage = tensor.untyped_storage()
        held = storage.nbytes() if storage.data_ptr() else 0  # tensors of zeros have no memory
    except RuntimeError:  # torch.func wraps tensors, and a wrapper has no storage
        return WRAPPED
    size, count = tensor.itemsize, tensor.numel()
    if not count or held >= (tensor.storage_offset() + count) * size:
        return ""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    needed = (tensor.storage_offset() + sum((n - 1) * step for n, step in steps) + 1) * size
    return f"its storage has {held} bytes, its shape needs {needed}" if needed > held else ""


def _kind(tensor: Tensor) -> str:
    if tensor.is_nested:
        return "nested"
    return "quantised" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")


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
