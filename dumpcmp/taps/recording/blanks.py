"""Memory that a program asked for and nobody has written to yet, or not everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef

from dumpcmp.taps.recording.sources import digest_of_all

_Mark = tuple[int | None, str]  # the version, and the digest of the bytes
_Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(slots=True)
class _Blank:
    alive: StorageWeakRef  # keeps its address from being given to another
    mark: _Mark  # as it was found, or after the last write that was seen
    written: _Bools | None = None  # which elements have been written; None: not one
    size: int = 0  # bytes of an element


class Blanks:
    """The storages of one step without values of their own.

    What writes there unseen changes the version or the bytes: then nobody knows where, and the
    storage is like any other. The bytes of a GPU's memory are not looked at, and kernels of the
    program's own write to it without a count: there it has no value for who is the first to take
    it, if that only writes to it.
    """

    def __init__(self) -> None:
        self.known: dict[int, _Blank] = {}

    def leave(self, tensor: Tensor) -> None:
        """Remember what lies there, so that a write is noticed."""
        storage = tensor.untyped_storage()
        alive = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        size = tensor.element_size()
        self.known[storage._cdata] = _Blank(alive, _mark(tensor, storage), size=size)

    def write(self, tensor: Tensor) -> None:
        """A function has filled `tensor`, which may be a part of such memory."""
        storage = tensor.untyped_storage()
        blank = self.known.get(storage._cdata)
        if blank is None:
            return
        mark = _mark(tensor, storage)
        is_next = _is_next(mark, blank.mark) and _shows_bytes(tensor)
        if not is_next or tensor.element_size() != blank.size:
            del self.known[storage._cdata]
            return
        if blank.written is None:
            blank.written = np.zeros(storage.nbytes() // blank.size, np.bool_)
        _part(blank.written, tensor)[...] = True
        blank.mark = mark
        if blank.written.all():  # a cache may be taken very often: it is like any other now
            del self.known[storage._cdata]

    def forget(self, tensor: Tensor) -> None:
        """Take the memory of `tensor` for written."""
        self.known.pop(tensor.untyped_storage()._cdata, None)

    def has(self, tensor: Tensor, is_target: Callable[[], bool]) -> bool:
        """Whether `tensor` is memory that has no value yet, here or there.

        `is_target` says whether who takes it writes to it, whatever lies there.
        """
        if not self.known:
            return False
        storage = tensor.untyped_storage()
        blank = self.known.get(storage._cdata)
        if blank is not None and not _shows_bytes(tensor):
            del self.known[storage._cdata]
            return blank.mark[0] == _version(tensor) and is_target()
        if blank is None or not _is_next((_version(tensor), ""), blank.mark):
            return False  # without a look at all of its bytes
        mark = _mark(tensor, storage)
        if blank.written is None:
            return mark == blank.mark
        if mark[1] != blank.mark[1]:
            return False
        return tensor.element_size() == blank.size and not bool(_part(blank.written, tensor).all())


def _is_next(mark: _Mark, before: _Mark) -> bool:
    """Whether at most one write was counted since; the dispatcher shows it before it counts."""
    now, then = mark[0], before[0]
    return now == then or (now is not None and then is not None and now == then + 1)


def _shows_bytes(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _mark(tensor: Tensor, storage: UntypedStorage) -> _Mark:
    return _version(tensor), digest_of_all(storage) if _shows_bytes(tensor) else ""


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _part(written: _Bools, tensor: Tensor) -> _Bools:
    """The elements of `tensor` among those of its storage; a bool is one byte."""
    return as_strided(written[int(tensor.storage_offset()) :], tensor.shape, tensor.stride())
