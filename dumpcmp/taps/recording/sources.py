"""Tensors able to put their elements where an archive wants them, from the host or a GPU."""

import ctypes
import threading
from collections.abc import Callable

import torch
import xxhash
from torch import Tensor, UntypedStorage


def digest_of(tensor: Tensor) -> str:
    """xxh3_128 of the dense bytes of a CPU tensor."""
    dense = tensor if tensor.is_contiguous() else tensor.detach().contiguous()
    return xxhash.xxh3_128_hexdigest(_bytes_of(dense))


def digest_of_all(storage: UntypedStorage) -> str:
    """xxh3_128 of all bytes of a CPU storage, whatever tensors lie in it."""
    nbytes = storage.nbytes() if storage.data_ptr() else 0
    room = (ctypes.c_char * nbytes).from_address(storage.data_ptr()) if nbytes else b""
    return xxhash.xxh3_128_hexdigest(room)


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

    def copy_into(self, room: memoryview) -> None:
        """Copy the elements densely into `room`, and take their digest while they are hot."""
        if not self.nbytes:
            self.digest = xxhash.xxh3_128_hexdigest(b"")
            return
        target = (ctypes.c_char * self.nbytes).from_buffer(room)
        if self.tensor.is_contiguous():
            ctypes.memmove(target, self.tensor.data_ptr(), self.nbytes)
        else:
            dense = torch.frombuffer(room, dtype=self.tensor.dtype).view(self.tensor.shape)
            dense.copy_(self.tensor.detach())
        self.digest = xxhash.xxh3_128_hexdigest(target)


class Stagings:
    """Pinned buffers and a side stream for each CUDA device, reused from tensor to tensor."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._idle: dict[int, list[Tensor]] = {}
        self._lock = threading.Lock()

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        with self._lock:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            return self._streams[device]

    def take(self, nbytes: int) -> Tensor:
        """A pinned buffer of at least `nbytes`, a power of two so that it can be used again."""
        size = 1 << max(12, (nbytes - 1).bit_length())
        with self._lock:
            idle = self._idle.get(size)
            if idle:
                return idle.pop()
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def give(self, buffer: Tensor) -> None:
        with self._lock:
            self._idle.setdefault(buffer.nbytes, []).append(buffer)


class DeviceSource:
    """A CUDA tensor, brought to pinned memory on a side stream.

    It is cloned first, on the stream that made it, which orders the clone before any later
    write to the tensor. Nothing waits until the archive needs the bytes.
    """

    __slots__ = ("_clone", "_stagings", "digest", "nbytes")

    def __init__(self, tensor: Tensor, stagings: Stagings, own: bool = False) -> None:
        self.nbytes = tensor.nbytes
        self.digest = ""
        self._stagings = stagings
        # A tensor of our `own` is written by nobody else, and needs no clone.
        dense = torch.contiguous_format
        self._clone = tensor if own else tensor.detach().clone(memory_format=dense)

    def copy_into(self, room: memoryview) -> Callable[[], None] | None:
        """Start the copy; the function that is returned waits for it and fills `room`."""
        if not self.nbytes:
            return None
        device = self._clone.device
        side = self._stagings.stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        buffer = self._stagings.take(self.nbytes)
        with torch.cuda.stream(side):
            flat = self._clone.view(-1).view(torch.uint8)
            buffer[: self.nbytes].copy_(flat, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(side)
        self._clone.record_stream(side)
        return lambda: self._settle(room, buffer, arrived)

    def _settle(self, room: memoryview, buffer: Tensor, arrived: torch.cuda.Event) -> None:
        arrived.synchronize()
        target = (ctypes.c_char * self.nbytes).from_buffer(room)
        ctypes.memmove(target, buffer.data_ptr(), self.nbytes)
        self._stagings.give(buffer)
