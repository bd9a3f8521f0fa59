"""CPU tensors able to put their elements where an archive wants them, and their digests."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import xxhash
from torch import Tensor, UntypedStorage

from dumpcmp.nouns.built import built

GATHER: Any = getattr(built("dumpcmp.taps.recording._gather"), "gather", None)
_SMALL = 1 << 16  # bytes that are copied element by element as fast as torch does it by blocks
_PIECE = 1 << 15  # bytes for which xxhash keeps Python's lock
_AT_ONCE = 4 << 20  # bytes for which other threads of Python may wait, a millisecond


def xxh3(room: Any) -> str:
    """xxh3_128 of the bytes of a buffer.

    Who lets go of Python's lock waits for the thread that writes, much longer than a digest takes.
    """
    view = memoryview(room)
    if not _SMALL <= view.nbytes <= _AT_ONCE:
        return xxhash.xxh3_128_hexdigest(view)
    octets, hashing = view.cast("B"), xxhash.xxh3_128()
    for start in range(0, len(octets), _PIECE):
        hashing.update(octets[start : start + _PIECE])
    return hashing.hexdigest()


def digest_of(tensor: Tensor) -> str:
    """xxh3_128 of the dense bytes of a CPU tensor."""
    if tensor.is_contiguous():
        return xxh3(_bytes_of(tensor))
    if GATHER is not None and tensor.nbytes <= _SMALL:
        room = bytearray(tensor.nbytes)
        GATHER(room, tensor.data_ptr(), tensor.itemsize, tensor.shape, tensor.stride())
        return xxh3(room)
    dense = tensor.detach().contiguous()
    return xxh3(_bytes_of(dense))


def digest_of_all(storage: UntypedStorage) -> str:
    """xxh3_128 of all bytes of a CPU storage, whatever tensors lie in it."""
    nbytes = storage.nbytes() if storage.data_ptr() else 0
    room = (ctypes.c_char * nbytes).from_address(storage.data_ptr()) if nbytes else b""
    return xxh3(room)


def _bytes_of(tensor: Tensor) -> ctypes.Array[ctypes.c_char]:
    """The memory of a contiguous CPU tensor, without a copy; `tensor` must outlive it."""
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())


class HostSource:
    """A tensor in host memory. It is copied at once, because the program may change it next."""

    __slots__ = ("digest", "nbytes", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.nbytes = tensor.nbytes
        self.digest = ""  # xxh3_128 of what was copied, known after the copy

    @property
    def lying(self) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
        """Where the elements lie: address, bytes of one, shape and stride."""
        tensor = self.tensor
        return tensor.data_ptr(), tensor.itemsize, tensor.shape, tensor.stride()

    def copy_into(self, room: memoryview) -> None:
        """Copy the elements densely into `room`, and take their digest while they are hot."""
        if self.nbytes:
            self._copy(room)
        self.digest = xxh3(room)

    def _copy(self, room: memoryview) -> None:
        tensor = self.tensor
        if GATHER is not None and (self.nbytes <= _SMALL or tensor.is_contiguous()):
            GATHER(room, tensor.data_ptr(), tensor.itemsize, tensor.shape, tensor.stride())
        elif tensor.is_contiguous():
            target = (ctypes.c_char * self.nbytes).from_buffer(room)
            ctypes.memmove(target, tensor.data_ptr(), self.nbytes)
        else:
            dense = torch.frombuffer(room, dtype=tensor.dtype).view(tensor.shape)
            dense.copy_(tensor.detach())
