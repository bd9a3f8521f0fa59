"""CUDA tensors on their way to the host: into the ring itself, while the program goes on."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dumpcmp.taps.recording.pages import Pages, address_of

CLONED_NBYTES = 1 << 30  # of device memory that copies under way may hold, at most
CLONED_SHARE = 16  # and one part in so many of what is free there
AT_ONCE_NBYTES = 1 << 20  # a copy on the program's own stream, which takes less than to switch
SLAB_NBYTES = 64 << 20  # of pinned memory, through which larger pieces pass
ASIDE_NBYTES = 256 << 20  # in pinned memory at once; a ring that is no larger has nothing larger


class Stagings:
    """What copies to the host share: a side stream for each device, and memory on both sides."""

    def __init__(self) -> None:
        self.pages = Pages()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._most: dict[torch.device, int] = {}  # bytes that may be cloned
        self._cloned: dict[torch.device, int] = {}  # that are
        self._idle: dict[int, list[Tensor]] = {}
        self._lock = threading.Lock()

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        with self._lock:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            return self._streams[device]

    def clone(self, tensor: Tensor) -> Tensor | None:
        """A dense copy on the device, made by the stream that made it; None: there is no room."""
        device, nbytes = tensor.device, tensor.nbytes
        with self._lock:
            if device not in self._most:
                free = torch.cuda.mem_get_info(device)[0]
                self._most[device] = min(CLONED_NBYTES, free // CLONED_SHARE)
            cloned = self._cloned.get(device, 0) + nbytes
            if cloned > self._most[device]:
                return None
            self._cloned[device] = cloned
        try:
            return tensor.clone(memory_format=torch.contiguous_format)
        except torch.OutOfMemoryError:
            self.let_go(device, nbytes)
            self._most[device] = 0
            return None

    def let_go(self, device: torch.device, nbytes: int) -> None:
        """Count `nbytes` of clones less."""
        with self._lock:
            self._cloned[device] -= nbytes

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


class Transfer:
    """A copy that is under way. To call it is to wait for it, and to let go of what it needed."""

    is_prompt = True  # it comes by itself, and whoever waits early waits for nobody else

    def __init__(self, stream: torch.cuda.Stream, pages: Pages, after: Callable[[], None]) -> None:
        self._arrived, self._pages, self._after = _recorded(stream), pages, after
        pages.num_begun += 1

    def __call__(self) -> None:
        self._arrived.synchronize()
        self._pages.num_arrived += 1
        self._after()


class DeviceSource:
    """A CUDA tensor, copied into memory that the device can write to.

    A small one is copied by the stream that made it. A larger one is cloned by that stream, which
    orders the clone before any later write to the tensor, and the clone is copied by another, so
    that the program's own kernels go on. Where there is no room for clones, they do wait.
    """

    __slots__ = ("_own", "_stagings", "digest", "nbytes", "tensor")

    def __init__(self, tensor: Tensor, stagings: Stagings, own: bool = False) -> None:
        self.nbytes = tensor.nbytes
        self.digest = ""
        self.tensor, self._stagings = tensor.detach(), stagings
        self._own = own  # a tensor of our own is written by nobody else, and needs no clone
        stagings.pages.expect(tensor.device)

    def copy_into(self, room: memoryview) -> Callable[[], None] | None:
        """Start the copy; the function that is returned waits for it."""
        if not self.nbytes:
            return None
        ends = self._stagings.pages.ends(address_of(room), self.nbytes)
        if ends:
            return self._send(Landing(room, ends), lambda: None)
        if self.nbytes > ASIDE_NBYTES:
            self._bring(room)
            return None
        return self._send_aside(room)

    def _send_aside(self, room: memoryview) -> Transfer:
        """Send it to pinned memory beside the room, which cannot be written to directly."""
        buffer, nbytes, stagings = self._stagings.take(self.nbytes), self.nbytes, self._stagings

        def settle() -> None:
            ctypes.memmove((ctypes.c_char * nbytes).from_buffer(room), buffer.data_ptr(), nbytes)
            stagings.give(buffer)

        return self._send(Landing(buffer, [nbytes]), settle)

    def _send(self, landing: Landing, after: Callable[[], None]) -> Transfer:
        tensor, stagings, device = self.tensor, self._stagings, self.tensor.device
        here = torch.cuda.current_stream(device)
        if self._own and self.nbytes <= AT_ONCE_NBYTES:
            landing.take(tensor)
            return Transfer(here, stagings.pages, after)
        if not self._own:
            clone = stagings.clone(tensor) if self.nbytes > AT_ONCE_NBYTES else None
            if clone is None:
                for piece in pieces(tensor, SLAB_NBYTES):
                    landing.take(piece)
                return Transfer(here, stagings.pages, after)
            tensor = clone
        side = stagings.stream(device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            landing.take(tensor)
        held, nbytes, own = [tensor], self.nbytes, self._own

        def settle() -> None:
            held.clear()
            if not own:
                stagings.let_go(device, nbytes)
            after()

        return Transfer(side, stagings.pages, settle)

    def _bring(self, room: memoryview) -> None:
        """Bring a tensor that has no place in the ring, slab by slab, and wait for it."""
        stagings, here = self._stagings, torch.cuda.current_stream(self.tensor.device)
        coming: deque[tuple[torch.cuda.Event, Tensor, int, int]] = deque()
        at = 0
        for piece in pieces(self.tensor, SLAB_NBYTES):
            if len(coming) > 1:
                _settle(room, stagings, *coming.popleft())
            slab = stagings.take(SLAB_NBYTES)
            Landing(slab, [SLAB_NBYTES]).take(piece)
            coming.append((_recorded(here), slab, at, piece.nbytes))
            at += piece.nbytes
        while coming:
            _settle(room, stagings, *coming.popleft())


class Landing:
    """Host memory that copies go to one after another, split where `ends` are."""

    def __init__(self, memory: memoryview | Tensor, ends: list[int]) -> None:
        if not isinstance(memory, Tensor):
            memory = torch.frombuffer(memory, dtype=torch.uint8)
        self._memory = memory
        self._ends = ends
        self._at = 0

    def take(self, piece: Tensor) -> None:
        """Have the current stream copy a dense `piece` to where the last one ended."""
        flat = piece.contiguous().view(-1).view(torch.uint8)
        done, nbytes = 0, flat.numel()
        for end in self._ends:
            if (count := min(nbytes, end - self._at) - done) > 0:
                target = self._memory[self._at + done : self._at + done + count]
                target.copy_(flat[done : done + count], non_blocking=True)
                done += count
        self._at += nbytes


def pieces(tensor: Tensor, most: int) -> Iterator[Tensor]:
    """`tensor` in row-major order, as pieces of which none takes more than `most` bytes dense."""
    if tensor.nbytes <= most:
        yield tensor
    elif tensor.is_contiguous():
        yield from torch.split(tensor.view(-1), most // tensor.itemsize)
    else:
        rows = max(1, most // max(1, tensor.nbytes // tensor.shape[0]))
        for some in torch.split(tensor, rows):
            yield from pieces(some[0] if len(some) == 1 else some, most)


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def _settle(
    room: memoryview, stagings: Stagings, arrived: torch.cuda.Event, slab: Tensor, at: int,
    nbytes: int,
) -> None:  # fmt: skip
    arrived.synchronize()
    target = (ctypes.c_char * nbytes).from_buffer(room, at)
    ctypes.memmove(target, slab.data_ptr(), nbytes)
    stagings.give(slab)
