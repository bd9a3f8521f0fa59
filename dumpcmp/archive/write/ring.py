"""The bounded memory between a capture and its writer thread, shared so that it outlives a kill."""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Literal, Protocol

from dumpcmp.archive import paths
from dumpcmp.archive.locks import lock
from dumpcmp.archive.paths import HEADER_NBYTES, SHARED_MEMORY
from dumpcmp.archive.write.desk import Positions

Memory = Literal["shared", "file", "private"]  # where a ring lies, if it can
SMALLEST = 1 << 20
FILE_NBYTES = 64 << 20  # of a ring that lies on the disk
PRIVATE_NBYTES = 8 << 20  # small, so that it is drained within the promised 100 ms
WARM_NBYTES = 2 << 20  # pages that are used again and again are in the cache, and need no fault

LARGE_REACH = 16 << 20  # for larger records, lest threads wait for each other after each one
LARGE_RECORDS = 4  # or for so many, if there is memory: one is copied while others are written
LENT_REACH = 256 << 20  # that is lent at once, since each piece takes the device a while
LENT_NBYTES = 2 << 30  # that a device may fill unasked, enough for all threads that write
LENT_SHARE = 16  # but not more than one part in so many of the memory that is free
PIECE = 2 << 20  # of which what is lent is a multiple
SHARE = 4  # of the memory that is free, one part in so many is taken unasked

_TAIL = Struct("<QQ")
_TAIL_AT = 24


class Borrower(Protocol):
    """Whoever writes into the ring from outside, and must know its memory before: a GPU."""

    @property
    def is_writing(self) -> bool:
        """Whether it has begun to."""

    def lend(self, address: int, nbytes: int) -> None:
        """Be told of memory that belongs to the ring from now on."""

    def give_back(self) -> None:
        """Write no more, since the memory goes."""


def affordable(wanted: int, directory: Path = SHARED_MEMORY, asked: bool = False) -> int:
    """How much of `wanted` a shared ring may take: a quarter of what is free, or nothing.

    Where the user has `asked` for so much, it is three quarters.
    """
    try:
        free = os.statvfs(directory)
    except OSError:
        return 0
    share = free.f_bavail * free.f_frsize // SHARE * (3 if asked else 1)
    nbytes = min(wanted, share) & -HEADER_NBYTES
    return nbytes if nbytes >= SMALLEST else 0


def free_memory() -> int:
    """Bytes that the system, and the group of processes that we are in, can still give."""
    found = [_system_memory(), _group_memory()]
    return min((nbytes for nbytes in found if nbytes is not None), default=0)


def _system_memory() -> int | None:
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def _group_memory(group: Path = Path("/sys/fs/cgroup")) -> int | None:
    with suppress(OSError, ValueError):
        most = int((group / "memory.max").read_text())  # or the word "max"
        return max(0, most - int((group / "memory.current").read_text()))
    return None


class Ring(Positions):
    """`capacity` bytes used round and round. `path` is None where the memory is private.

    The records in use lie from `tail` to `head`, or, once `wrapped`, from `tail` to where a
    wrap record stands and from the start to `head`. Only the first `reach` bytes are in use until
    the disk falls behind: fresh pages cost more than a short wait. The first page of the memory
    says where the oldest record is, for whoever finds the ring after its process was killed.
    """

    def __init__(
        self, capacity: int, path: Path | None = None, claim: bytes = b"", unlent: int | None = None
    ) -> None:
        self.capacity = max(capacity & -HEADER_NBYTES, SMALLEST)
        self.path = path
        self._unlent = unlent  # bytes that are enough while no device writes; None: asked for all
        self._descriptor = -1
        self._memory = self._map()
        self.room = memoryview(self._memory)[HEADER_NBYTES:]
        self.head = self.tail = self.used = 0
        self.wrapped = self.asked = self.asleep = self.failed = False
        self.sequence = 1
        self.reach = min(WARM_NBYTES, self.capacity, unlent or self.capacity)
        self._limit = self.capacity  # less, once the system has no more memory to give
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + HEADER_NBYTES
        self._borrower: Borrower | None = None
        self._memory[paths.RING_OWNER_AT : paths.RING_OWNER_AT + len(claim)] = claim
        paths.RING_HEADER.pack_into(self._memory, 0, paths.RING_MAGIC, self.capacity, 0, 1)

    def _map(self) -> mmap.mmap:
        nbytes = HEADER_NBYTES + self.capacity
        if self.path is None:
            return mmap.mmap(-1, nbytes)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        try:
            lock(descriptor)  # in use, as others see
            os.ftruncate(descriptor, nbytes)
            self._reserve(descriptor, 0, min(WARM_NBYTES, self.capacity))
            memory = mmap.mmap(descriptor, nbytes)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return memory

    def _reserve(self, descriptor: int, start: int, stop: int) -> None:
        """Have memory for these bytes, and the wrap record behind them: a full disk shows now.

        A page that nobody has reserved, and for which there is no room when it is touched, ends
        the program with a signal.
        """
        stop = min(stop, self.capacity - HEADER_NBYTES) + 2 * HEADER_NBYTES
        os.posix_fallocate(descriptor, start, stop - start)

    def place_for(self, nbytes: int) -> int:
        """Where `nbytes` can lie in one piece: `head`, or 0 for a wrap, or -1: nowhere yet."""
        if self.wrapped:
            return self.head if nbytes <= self.tail - self.head else -1
        if nbytes <= self.reach - self.head:
            return self.head
        return 0 if nbytes <= self.tail else -1

    def grow(self) -> None:
        """Reach twice as far, if there is so much."""
        self._reach_to(2 * self.reach)

    def reach_for(self, nbytes: int) -> bool:
        """Reach far enough for a few records of `nbytes`, or for many that are not so large.

        False where the ring cannot hold two: the memory is too small, or given to others.
        """
        if 2 * nbytes <= self.most:
            self._reach_to(max(LARGE_RECORDS * nbytes, min(64 * nbytes, LARGE_REACH)))
        return 2 * nbytes <= self.reach

    def lend_to(self, borrower: Borrower) -> None:
        """Let `borrower` know of all memory that is in use, now and later."""
        self._borrower = borrower
        borrower.lend(self._address, self.reach)

    @property
    def is_shared(self) -> bool:
        """Whether it lies in shared memory, which a device can write to."""
        return self.path is not None and self.path.parent == SHARED_MEMORY

    @property
    def most(self) -> int:
        """Bytes that it may reach for now."""
        if self._unlent is None or self.is_lent:
            return self._limit
        return min(self._unlent, self._limit)

    @property
    def is_lent(self) -> bool:
        """Whether somebody outside writes here."""
        return self._borrower is not None and self._borrower.is_writing

    def make_room(self, nbytes: int) -> None:
        """Reach further for `nbytes`, rather than go on at the start, where little is free yet."""
        if not self.wrapped and nbytes > self.reach - self.head and self.tail < self.reach // 2:
            self._reach_to(max(2 * self.reach, self.head + nbytes, LENT_REACH))

    def _reach_to(self, wanted: int) -> None:
        """Reach as far as `wanted`, or as there is memory: all that is used is reserved before."""
        wanted = min(-(-wanted // PIECE) * PIECE, self.most)
        if self._unlent is None and self.is_lent:
            wanted = self.most  # at once, so that no step waits for it later
        if wanted <= self.reach:
            return
        if self._descriptor >= 0:
            try:
                self._reserve(self._descriptor, self.reach, wanted)
            except OSError:  # full: it stays as large as it is, and whoever needs more waits
                self._limit = self.reach
                return
        if self._borrower is not None:
            self._borrower.lend(self._address + self.reach, wanted - self.reach)
        self.reach = wanted

    @property
    def is_half_full(self) -> bool:
        """Whether half of what is in use holds records that are not written yet."""
        return self.used > self.reach // 2

    @property
    def is_idle(self) -> bool:
        """Whether all was written, so that it can begin again at its start.

        A wrap record that takes no room may still be under way.
        """
        return self.used == 0 and not self.wrapped

    def wrap(self) -> None:
        """Go on at the start; what is left at the end is not used this time."""
        self.head = 0
        self.wrapped = True

    def rewind(self, sequence: int) -> None:
        """Begin again at the start of an empty ring; the next record has `sequence`."""
        self.head = self.tail = 0
        self.wrapped = False
        _TAIL.pack_into(self._memory, _TAIL_AT, 0, sequence)

    def release(self, nbytes: int, sequence: int) -> None:
        """Free the oldest `nbytes`; the record after them has `sequence`."""
        self.tail += nbytes
        self.used -= nbytes
        _TAIL.pack_into(self._memory, _TAIL_AT, self.tail, sequence)

    def unwrap(self, nbytes: int, sequence: int) -> None:
        """Free the wrap record of `nbytes`: the oldest record is at the start now."""
        self.used -= nbytes
        self.tail = 0
        self.wrapped = False
        _TAIL.pack_into(self._memory, _TAIL_AT, 0, sequence)

    def let_go(self) -> None:
        """In a forked child: hold the ring no more, so that it is free once its owner is gone."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def close(self) -> None:
        """Give the memory back, and remove the shared file."""
        if self._borrower is not None:
            self._borrower.give_back()
        with suppress(BufferError):  # somebody still looks at it: it goes when they do
            self.room.release()
            self._memory.close()
        self.let_go()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def make_ring(wanted: int, memory: Memory, directory: Path, buffer: int | None = None) -> Ring:
    """A ring that outlives a kill: in shared memory, else in `directory`; else a private one.

    With a `buffer` it may grow to so many bytes in shared memory, or to half of what is free.
    Without, it may grow beyond `wanted` once a device fills it.
    """
    choices, unlent = [], wanted if buffer is None else None
    free = free_memory()
    most = max(wanted, min(LENT_NBYTES, free // LENT_SHARE))
    most = most if buffer is None else min(buffer, free // 2)
    if memory == "shared" and (nbytes := affordable(most, asked=buffer is not None)):
        name = f"{paths.RING_PREFIX}{os.getpid()}-{secrets.token_hex(6)}"
        choices.append((nbytes, SHARED_MEMORY / name))
    if memory != "private":
        choices.append((min(wanted, FILE_NBYTES), directory / paths.RING_FILE))
    for nbytes, path in choices:
        try:
            return Ring(nbytes, path, paths.ring_claim(directory), unlent)
        except OSError:
            path.unlink(missing_ok=True)
    return Ring(min(wanted, PRIVATE_NBYTES))
