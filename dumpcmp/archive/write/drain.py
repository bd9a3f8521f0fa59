"""The writer thread: takes finished records from the ring and writes them, in large pieces."""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any
from zlib import crc32

from xxhash import xxh3_128_hexdigest

from dumpcmp.archive import schema
from dumpcmp.archive.encoder import UNDEFINED
from dumpcmp.archive.schema import ADDRESS_AT, CRC_AT, MAGIC, PREFIX_HEADER
from dumpcmp.archive.write.part import Part
from dumpcmp.archive.write.ring import Ring
from dumpcmp.handlers import overdue

COMMIT_SECONDS = 0.05  # half of what is promised: a commit itself takes time too
GATHER_SECONDS = 0.01
GATHER_NBYTES = 1 << 20
SMALL_RUN = 1 << 20  # bytes that are finished at once, or a quarter of what the ring reaches
LARGE_NBYTES = 4 << 20  # a value that is written while it is digested
SMALLEST_SHARED = 1 << 17  # bytes worth another thread
PATIENCE_SECONDS = 0.5  # a producer waits so long in all before the ring takes more memory
_CALL, _VALUE = schema.CALL, schema.VALUE
_PACK_ADDRESS = schema.ADDRESS.pack_into
_PACK_CRC = schema.CRC.pack_into
SEAL = 0  # an entry that has no bytes in the ring: the part is finished

# A record in the ring: its kind, its part, its place and bytes there, and what the kind needs.
Laid = tuple[Any, ...]


class Pen:
    """A thread that does one thing at a time: it writes while the next records are finished."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy = False

    def begin(self, job: Callable[[], None]) -> None:
        """Start `job`; the one before must have ended."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="dumpcmp pen", daemon=True)
            self._thread.start()
        self._busy = True
        self._jobs.put(job)

    def end(self) -> None:
        """Wait for the job, if there is one, and raise what it raised."""
        if self._busy:
            self._busy = False
            if error := self._done.get():
                raise error

    def stop(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    def _work(self) -> None:
        while job := self._jobs.get():
            try:
                job()
            except BaseException as error:  # raised again by `end`, in the thread that waits
                self._done.put(error)
            else:
                self._done.put(None)


def _no_answer() -> OSError:
    return OSError(errno.EINTR, "the disk did not answer while a signal was waiting")


class Drain:
    """Writes what is `submit`ted, in order, on a thread of its own.

    `lock` guards the ring's positions. `working` is held while parts change. After a failure
    `error` is set, the ring is free, and nothing more is written.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._room = ring.room
        self.lock = threading.Lock()
        self.freed = threading.Condition(self.lock)
        self.working = threading.Lock()
        self.pending: deque[Laid] = deque()
        self.error: BaseException | None = None
        self.seconds_waited = self._impatience = 0.0
        self.open_parts: set[Part] = set()
        self._sequence = 1
        self._committed_at = 0.0
        self.asleep = False
        self._stopping = False
        self._wake = threading.Event()
        self._writing: tuple[int, int] | None = None  # bytes and records under way
        self._stamps: deque[tuple[int, float]] = deque()  # when records came, every few ms
        self._pen = Pen()
        self._thread = threading.Thread(target=self._work, name="dumpcmp writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, entry: Laid) -> None:
        """Take `entry`; the caller holds `lock` and has put the record into the ring."""
        self.pending.append(entry)
        if self.asleep or self.ring.used > GATHER_NBYTES:
            self.nudge()

    def nudge(self) -> None:
        if not self._wake.is_set():
            self._wake.set()

    def wait_until(self, free: Callable[[], bool]) -> None:
        """Wait, with `lock` held, until `free()` or a failure: the disk is behind the model."""
        began = time.monotonic()
        while self.error is None and not free():
            self._wake.set()
            self.freed.wait(1.0)
            if overdue():
                self.error = _no_answer()
        waited = time.monotonic() - began
        self.seconds_waited += waited
        self._impatience += waited
        if self._impatience > PATIENCE_SECONDS:
            self._impatience = 0.0
            self.ring.grow()

    def keep_up(self, sequence: int) -> None:
        """Wait while private memory holds what a kill must not lose any more."""
        stamps, moment = self._stamps, time.monotonic()
        if self.ring.used == 0:
            stamps.clear()
        if not stamps or moment - stamps[-1][1] > GATHER_SECONDS / 2:
            stamps.append((sequence, moment))
        if moment - stamps[0][1] > COMMIT_SECONDS:
            self.wait_until(lambda: not stamps or self.ring.used == 0 or stamps[0][1] >= moment)

    def stop(self) -> bool:
        """Write everything that was submitted, seal every part, and end the thread.

        False where the disk did not answer while a signal was waiting: all is left as it is, and
        what was not written yet lies in the ring, where a repair finds it.
        """
        self._stopping = True
        self._wake.set()
        while self._thread.is_alive():
            self._thread.join(1.0)
            if self._thread.is_alive() and overdue():
                self.error = _no_answer()
                return False
        return True

    def _work(self) -> None:
        try:
            while not self._stopping or self.pending:
                self._rest()
                with self.working:
                    self._write_pending()
                    if time.monotonic() - self._committed_at >= COMMIT_SECONDS:
                        self._commit()
            with self.working:
                for part in list(self.open_parts):
                    self._seal(part)
        except BaseException as error:  # whatever it is, the user's program must go on
            self._fail(error)
        finally:
            self._pen.stop()

    def _rest(self) -> None:
        """Sleep until there is something to write or to commit."""
        if self.pending or any(part.dirty for part in self.open_parts):
            self._wake.wait(GATHER_SECONDS)
        else:
            self.asleep = True
            if not self.pending and not self._stopping:
                self._wake.wait()
            self.asleep = False
        self._wake.clear()

    def _commit(self) -> None:
        self._settle()
        for part in self.open_parts:
            part.commit_in_time()
        self._committed_at = time.monotonic()

    def _seal(self, part: Part) -> None:
        self.open_parts.discard(part)
        part.seal()

    def _write_pending(self) -> None:
        """Write all that is pending, but leave off when a commit is due."""
        while self.pending:
            kind, part, _, nbytes, *_ = self.pending[0]
            if kind == SEAL:
                self.pending.popleft()
                self._settle()
                self._seal(part)
            elif kind == schema.WRAP:
                self.pending.popleft()
                self._settle()
                with self.lock:
                    self._sequence += bool(nbytes)
                    self.ring.unwrap(nbytes, self._sequence)
                    self.freed.notify_all()
            else:
                if kind == _VALUE and nbytes > LARGE_NBYTES:
                    self._write_large(self.pending.popleft())
                else:
                    self._write_run(part)
                if time.monotonic() - self._committed_at >= COMMIT_SECONDS:
                    break
        self._settle()

    def _write_run(self, part: Part) -> None:
        """Finish the records of `part` that lie one after another, then write them at once."""
        pending, finish_value = self.pending, self._finish_value
        start = stop = pending[0][2]
        began, count, most = part.end, 0, max(SMALL_RUN, self.ring.reach // 4)
        self.open_parts.add(part)
        while pending:
            entry = pending[0]
            total = entry[3]
            if entry[1] is not part or entry[2] != stop or entry[0] == SEAL:
                break
            if count and stop + total - start > most:
                break
            pending.popleft()
            if entry[0] == _VALUE:
                finish_value(entry, part)
            else:
                self._finish_text(*entry)
            stop += total
            count += 1
        self._settle()
        self._writing = stop - start, count
        part.sequence = self._sequence + count
        content = self.ring.room[start:stop]
        if stop - start >= SMALLEST_SHARED:
            self._pen.begin(lambda: part.write(content, began))
        else:
            part.write(content, began)
            self._settle()

    def _write_large(self, entry: Laid) -> None:
        """Write a large value while it is digested; its prefix, which makes it valid, is last."""
        _, part, place, total, _, form, _, _, wait, _ = entry
        if wait is not None:
            wait()
            self._room[place : place + 4] = MAGIC
        self._settle()
        self.open_parts.add(part)
        self._writing = total, 1
        began, start = part.end, form.prefix_nbytes
        content = self._room[place + start : place + total]
        self._pen.begin(lambda: part.write(content, began + start))
        self._finish_value((*entry[:8], None, entry[9]), part)
        self._pen.end()
        part.write(self._room[place : place + start], began)
        part.sequence = self._sequence + 1
        self._settle()

    def _settle(self) -> None:
        """Wait for the write that is under way, and free what it has written."""
        if self._writing is None:
            return
        nbytes, count = self._writing
        self._pen.end()
        self._writing = None
        with self.lock:
            self._sequence += count
            self.ring.release(nbytes, self._sequence)
            while self._stamps and self._stamps[0][0] < self._sequence:
                self._stamps.popleft()
            self.freed.notify_all()

    def _finish_text(self, kind: int, part: Part, place: int, total: int, *rest: Any) -> None:
        """Give a record that is all text its address and CRC."""
        room, address = self._room, part.end
        _PACK_ADDRESS(room, place + ADDRESS_AT, address)
        _PACK_CRC(room, place + CRC_AT, crc32(room[place + 8 : place + total]))
        part.end = address + total
        if kind == _CALL:
            part.add_call(*rest)
        elif kind == schema.FORM:
            part.forms.append(*rest)
        else:
            owner, holder, row, path = rest
            part.add_link(owner, row, holder.row(row), path)

    def _finish_value(self, entry: Laid, part: Part) -> None:
        """Wait for the copy, digest the bytes, and fill in what depends on the place.

        This runs for every value: it reads no attribute twice and calls little.
        """
        _, _, place, total, call, form, number, order, wait, given = entry
        room, address, prefix, nbytes = self._room, part.end, form.prefix_nbytes, form.nbytes
        if wait is not None:
            wait()
            room[place : place + 4] = MAGIC
        start, fields = place + prefix, place + PREFIX_HEADER
        digest = (given or xxh3_128_hexdigest(room[start : start + nbytes])).encode()
        offset = address + prefix if nbytes else 0
        form.header.pack_into(
            room, fields, form.before_address, offset or UNDEFINED, form.before_digest, digest
        )
        _PACK_ADDRESS(room, place + ADDRESS_AT, address)
        _PACK_CRC(room, place + CRC_AT, crc32(room[place + 8 : fields]))
        part.end = address + total
        part.add_value(call, form, number, order, address, offset, digest)

    def _fail(self, error: BaseException) -> None:
        """Stop: keep what is in the parts, free the ring, and let the producer know."""
        for part in self.open_parts:
            try:
                part.close()
            except OSError:  # the disk refuses even that; a scan finds the records all the same
                continue
        with self.lock:
            self.error = error
            self.pending.clear()
            self.freed.notify_all()
