"""Hands the values of a step to the Sink: each one's bytes once, a link where they repeat."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import (
    UNWRITTEN,
    Call,
    Kept,
    KnowingSink,
    Record,
    Sink,
    Source,
    Stored,
    Where,
)
from dumpcmp.nouns.selection import Tap
from dumpcmp.nouns.value import DTYPES
from dumpcmp.pytorch.trees import Slots
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.recording.blanks import Blanks
from dumpcmp.taps.recording.functions import is_target
from dumpcmp.taps.recording.plain import WRAPPED, Plain, counts_writes, plain_of, version_of
from dumpcmp.taps.recording.sources import HostSource, digest_of
from dumpcmp.taps.recording.transfers import DeviceSource, Stagings
from dumpcmp.taps.recording.transforms import can_look_inside, held_by, outside

_DTYPES = {getattr(torch, name): name for name in DTYPES}
_MOST_FORMS = 65_536
_Geometry = tuple[torch.Size, tuple[int, ...], torch.dtype]


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


Shared = tuple[Tensor, int]  # whose memory an op gives out, and how often it writes to it


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
        self.knowing: KnowingSink | None = sink if hasattr(sink, "put_known") else None  # type: ignore[assignment]
        self.forms: dict[tuple[Any, ...], object] = {}  # that it knows, by what decides them
        self.tap = tap
        self.rank = rank
        self.counts = Counts()
        self.ops: set[str] = set()  # all ops that ran, also those not selected
        self.lacking: list[str] = []  # what this torch has not, and what is not recorded for it
        self.lock = threading.RLock()
        self.stagings = Stagings()
        self.condense: Condense | None = None  # takes Summaries, where they are all that is kept
        self.condense_taped: Condense | None = None  # which a CUDA graph can take in, if any can
        self.remembers = True  # what it was handed, so that it can be linked to when it comes again
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

    @contextmanager
    def sparing(self) -> Iterator[None]:
        """Note what goes wrong in the block, in which only effects are recorded.

        It stands where the program would see it, and is none of the program's doing.
        """
        try:
            yield
        except Exception as error:
            self.note_lacking(f"an effect is not recorded: {type(error).__name__}: {error}")

    def note_lacking(self, said: str) -> None:
        """Note once what is not recorded."""
        if said not in self.lacking:
            self.lacking.append(said)

    def give_up(self, error: Exception) -> None:
        """Record nothing more, since `error` came up in recording: the program goes on.

        What refuses to capture at all, and what a Sink cannot be told, is raised.
        """
        fail = getattr(self.sink, "fail", None)
        if fail is None or isinstance(error, CaptureError):
            raise error
        self.is_inert = True
        fail(error)

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


# Where a value lies; its version, or None: an inference tensor, which has none; and its digest, or
# nothing: on a GPU, where reading the bytes back would stop the program.
_Seen = tuple[Where, int | None, str]


class Values:
    """The values of one step, known by storage, place in it, geometry and version."""

    def __init__(self, outlet: Outlet, model: str, step: int) -> None:
        self._outlet = outlet
        self._model, self._step = model, step
        self._seen: dict[tuple[Any, ...], _Seen] = {}
        self._storages: dict[int, StorageWeakRef] = {}
        self._writes: dict[int, int] = {}  # by storage: those that torch does not count
        self._ahead: tuple[int, int] | None = None  # a storage, and the version it will have
        self._blanks = Blanks()

    @property
    def tables(self) -> tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any]]:
        """What was seen where, the storages that are held, and memory without values."""
        return self._seen, self._storages, self._blanks.known

    def forget(self) -> Callable[[], None]:
        """Link nothing to what came so far.

        Gives what forgets all that came since, and knows again what was known before.
        """
        before = dict(self._seen)
        self._seen.clear()

        def know_again() -> None:
            self._seen.clear()
            self._seen.update(before)

        return know_again

    def put_each(self, call: Call, found: Slots) -> None:
        """Record values of `call`, as `put` does one.

        This runs for every value: of a tensor that is plain itself it asks little.
        """
        outlet = self._outlet
        for slot, tensor in found:
            counted = counts_writes(tensor)
            if counted is None or distributed.layout_of(tensor):
                self.put(call, slot, tensor)
                continue
            with outlet.lock:
                outlet.counts.values += 1
                version = tensor._version if counted else None
                self._store(call, slot, tensor, version, condense=outlet.condense)

    @property
    def writes(self) -> dict[int, int]:
        """How often each storage was written to, as far as torch does not count that."""
        return self._writes

    @property
    def has_uncounted(self) -> bool:
        """Whether something was written to that torch does not count."""
        return bool(self._writes)

    def put_at(
        self, targets: Sequence[tuple[Call, str]], tensor: Tensor, where: Where | None = None
    ) -> None:
        """Record one value at several slots: at the first of them, and links to it at the others.

        It is looked at once. Where its bytes are in the archive already, all of them are links.
        """
        outlet = self._outlet
        counted = counts_writes(tensor)
        if counted is None or distributed.layout_of(tensor):
            for call, slot in targets:
                where = self.put(call, slot, tensor, where)
            return
        plain = Plain(tensor)
        with outlet.lock:
            for call, slot in targets:
                outlet.counts.values += 1
                if where is not None:
                    outlet.counts.links += 1
                    self._hand(call, slot, plain, _geometry(tensor), same_as=where)
                    continue
                version = tensor._version if counted else None
                where = self._store(call, slot, tensor, version, condense=outlet.condense)

    def put(
        self,
        call: Call,
        slot: str,
        tensor: Tensor,
        same_as: Where | None = None,
        fresh: bool = False,
        seen_in: str = "",
        unwritten: bool = False,
        by: Condense | Literal[False] | None = False,
    ) -> Where:
        """Record one value: its bytes, or a link to where this step stored the very same.

        Generated code reuses memory without a word to torch: its values are `fresh`, never
        taken for one that lay there before. Memory that is `unwritten` has no value, neither
        here nor wherever it is taken before somebody writes to it. Summaries are taken `by` what is
        given, or not at all if that is None. Returns where the bytes are stored.
        """
        plain = plain_of(tensor)._replace(seen_in=seen_in) if seen_in else plain_of(tensor)
        if plain.problem == WRAPPED and can_look_inside():
            with outside():
                held = held_by(tensor)
                if held is not None and held.tensor is not tensor:
                    return self.put(
                        call, slot, held.tensor, same_as, fresh, held.seen_in, unwritten, by
                    )
        outlet = self._outlet
        if unwritten and not plain.problem:
            self._blanks.leave(plain.tensor)
            plain = plain._replace(problem=UNWRITTEN)
        with outlet.lock:
            outlet.counts.values += 1
            if plain.problem:
                outlet.sink.put(self._record(call, slot, plain), None)
            elif same_as is not None:
                outlet.counts.links += 1
                self._hand(call, slot, plain, _geometry(plain.tensor), same_as=same_as)
            else:
                own = plain.tensor
                version = version_of(own)
                condense = outlet.condense if by is False else by
                return self._store(
                    call, slot, own, version, fresh, condense, plain.layout, plain.seen_in
                )
        return same_as or (call.op, call.call, slot)

    def put_aside(self, call: Call, slot: str, tensor: Tensor) -> None:
        """Record one value as `put` does, and link nothing to it that comes later."""
        if self.put(call, slot, tensor) == (call.op, call.call, slot):
            self.forget_one(tensor)

    def put_weight(self, call: Call, slot: str, tensor: Tensor, in_brief: bool) -> str:
        """Record a parameter or buffer, as much of it as the outlet keeps of those.

        Where no function could link to it, a Summary is enough to know it by: that is `in_brief`.
        Gives the digest of its bytes, where they were read on the host.
        """
        outlet = self._outlet
        is_short = in_brief and outlet.weights is not Weights.WHOLE
        if not (is_short or outlet.weights is Weights.SUMMARY) or outlet.weigh is None:
            weigh = outlet.weigh if outlet.condense else None
            self.put(call, slot, tensor, by=None if outlet.weights is Weights.WHOLE else weigh)
            return self._digest(tensor)
        plain = plain_of(tensor)
        with outlet.lock:
            key = self._key(call, slot)
            held = None if plain.problem else outlet.weigh(key, plain.tensor, plain.layout)
            if held is None:
                self.put(call, slot, tensor)
                return self._digest(tensor)
            outlet.counts.values += 1
            source = held.source or self._source(held.numbers, own=True)
            outlet.counts.nbytes += source.nbytes
            self._hand(call, slot, plain, _geometry(plain.tensor), source, held.stored)
            return held.digest

    def _digest(self, tensor: Tensor) -> str:
        """Of a value that was recorded last at its place; empty where it is not known."""
        plain = plain_of(tensor)
        if plain.problem:
            return ""
        own = plain.tensor
        place = (own.untyped_storage()._cdata, own.data_ptr(), _geometry(own))
        seen = self._seen.get(place)
        return seen[2] if seen is not None else ""

    def _key(self, call: Call, slot: str) -> Key:
        return Key(self._model, self._step, call.op, call.call, slot)

    def _store(
        self,
        call: Call,
        slot: str,
        tensor: Tensor,
        version: int | None,
        fresh: bool = False,
        condense: Condense | None = None,
        layout: str = "",
        seen_in: str = "",
    ) -> Where:
        """Hand on the elements of a plain tensor, or a link to where they are."""
        outlet = self._outlet
        storage = tensor.untyped_storage()
        held = storage._cdata
        geometry = (tensor.shape, tensor.stride(), tensor.dtype)
        place = (held, tensor.data_ptr(), geometry)
        if self._ahead is not None and version is not None and held == self._ahead[0]:
            version = self._ahead[1]
        if version is not None and held in self._writes:
            version += self._writes[held]
        plain = Plain(tensor, layout, "", seen_in)
        where = (call.op, call.call, slot)
        if self._blanks.has(tensor, lambda: is_target(call.target, slot)):
            outlet.sink.put(self._record(call, slot, plain._replace(problem=UNWRITTEN)), None)
            return where
        seen = self._seen.get(place)
        if seen is not None and not fresh and _is_still(seen, tensor, version):
            outlet.counts.links += 1
            self._hand(call, slot, plain, geometry, same_as=seen[0])
            return seen[0]
        if held not in self._storages:  # holding it keeps its address from being reused
            self._storages[held] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        condensed = condense(self._key(call, slot), tensor, layout) if condense else None
        if condensed is None:
            source = self._source(tensor, own=False)
            self._hand(call, slot, plain, geometry, source)
            digest = getattr(source, "digest", "")
        else:
            source = condensed.source or self._source(condensed.numbers, own=True)
            self._hand(call, slot, plain, geometry, source, condensed.stored)
            digest = condensed.digest
        outlet.counts.nbytes += source.nbytes
        if outlet.remembers:
            self._seen[place] = (where, version, digest)
        return where

    def _hand(
        self,
        call: Call,
        slot: str,
        plain: Plain,
        geometry: _Geometry,
        source: Source | None = None,
        stored: Stored | None = None,
        same_as: Where | None = None,
    ) -> None:
        """Hand a value to the Sink; it is described only where none like it came before."""
        outlet = self._outlet
        sink, (tensor, layout, _, seen_in) = outlet.sink, plain
        place = (tensor.storage_offset(), tensor.device)
        facts = (slot, geometry, place, layout, seen_in, stored)
        knowing = outlet.knowing if outlet.knowing is sink else None  # not while a graph is taped
        form = outlet.forms.get(facts)
        if knowing and form is not None and knowing.put_known(call, slot, form, source, same_as):
            return
        record = self._record(call, slot, plain, same_as, stored)
        sink.put(record, source)
        if knowing and (form := knowing.form_of(record)) is not None:
            if len(outlet.forms) >= _MOST_FORMS:
                outlet.forms.clear()
            outlet.forms[facts] = form

    def rewritten(self, tensor: Tensor) -> None:
        """Something has written to `tensor` that torch does not count, as collectives do."""
        plain = plain_of(tensor)
        if not plain.problem:
            held = plain.tensor.untyped_storage()._cdata
            self._writes[held] = self._writes.get(held, 0) + 1

    def count_ahead(self, tensor: Tensor | None, num_writes: int = 0) -> None:
        """What comes now has the memory of `tensor`, whose writes it will count: and so many more.

        Torch tells tensors so when it is done with what computes them. None: it is done.
        """
        plain = None if tensor is None else plain_of(tensor)
        self._ahead = None
        if plain is not None and not plain.problem and not plain.tensor.is_inference():
            own = plain.tensor
            self._ahead = own.untyped_storage()._cdata, own._version + num_writes

    def forget_one(self, tensor: Tensor) -> None:
        """Something may have written to `tensor` that torch does not count: link it to nothing."""
        plain = plain_of(tensor)
        if not plain.problem:
            own = plain.tensor
            held = own.untyped_storage()._cdata
            self._seen.pop((held, own.data_ptr(), _geometry(own)), None)

    def filled(self, tensor: Tensor) -> None:
        """A function has written to all of `tensor`."""
        plain = plain_of(tensor)
        if not plain.problem:
            self._blanks.write(plain.tensor)

    def written_somewhere(self, tensor: Tensor) -> None:
        """Something has written to `tensor`, nobody knows where: maybe what lay there before."""
        plain = plain_of(tensor)
        if not plain.problem:
            self._blanks.forget(plain.tensor)

    def _source(self, tensor: Tensor, own: bool) -> Source:
        if tensor.is_cpu:
            return HostSource(tensor)
        return DeviceSource(tensor, self._outlet.stagings, own)

    def _record(
        self,
        call: Call,
        slot: str,
        plain: Plain,
        same_as: Where | None = None,
        stored: Stored | None = None,
    ) -> Record:
        tensor, problem = plain.tensor, plain.problem
        dtype = _DTYPES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
        shape = () if problem and tensor.is_nested else tuple(tensor.shape)
        stride, offset = ((), 0) if problem else (tensor.stride(), int(tensor.storage_offset()))
        kept = Kept.NOTHING if problem else Kept.SUMMARY if stored else Kept.FULL
        link = None if same_as is None else Key(self._model, self._step, *same_as)
        return Record(
            self._key(call, slot), call.order, dtype, shape, stride, offset,
            _device_name(tensor.device), self._outlet.rank, plain.layout, link, kept, problem,
            stored=stored, seen_in=plain.seen_in,
        )  # fmt: skip


def _geometry(tensor: Tensor) -> _Geometry:
    return tensor.shape, tensor.stride(), tensor.dtype


@cache
def _device_name(device: torch.device) -> str:
    return str(device)


def _is_still(seen: _Seen, tensor: Tensor, version: int | None) -> bool:
    """Whether `tensor` holds what it held when it was seen.

    The version counter misses writes through ``.data`` or a numpy alias, so the bytes decide
    wherever they can be read without stopping the program.
    """
    _, before, digest = seen
    if before != version:
        return False
    if digest:
        return digest_of(tensor) == digest
    return version is not None
