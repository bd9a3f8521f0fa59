"""The writer thread: takes finished records from the ring and writes them, in large pieces."""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from xxhash import xxh3_128

from dumpcmp.archive import schema
from dumpcmp.archive.write.arrangement import Arrangements
from dumpcmp.archive.write.arrivals import Arrivals
from dumpcmp.archive.write.finishing import SEAL, Finisher, Laid
from dumpcmp.archive.write.objects import Template
from dumpcmp.archive.write.part import Part
from dumpcmp.archive.write.pens import Errand, Flight, Pens
from dumpcmp.archive.write.ring import Ring
from dumpcmp.handlers import overdue

COMMIT_SECONDS = 0.05  # half of what is promised: a commit itself takes time too
GATHER_SECONDS = 0.01
GATHER_NBYTES = 1 << 20
SMALL_RUN = 1 << 20  # bytes that are finished at once, or a quarter of what the ring reaches
LARGE_RUN = 16 << 20  # but never more than this
PIECE_NBYTES = 1 << 20  # digested and written at once: so much stays in the cache between them
MOST_FLYING = 2 << 30  # bytes under way at once
LATEST_SECONDS = 0.5  # a commit of other parts does not wait longer for large values under way
SMALLEST_SHARED = 1 << 17  # bytes worth another thread
PATIENCE_SECONDS = 0.5  # a producer waits so long in all before the ring takes more memory


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
        self._finishing = Finisher(ring.room)
        self.lock = threading.Lock()
        self.freed = threading.Condition(self.lock)
        self.working = threading.Lock()
        self.pending: deque[Laid] = deque()
        self.error: BaseException | None = None
        self.seconds_waited = self._impatience = 0.0
        self.open_parts: set[Part] = set()
        self._sequence = 1  # of the oldest record in the ring
        self._num_laid = 1  # the sequence number of the next record to write
        self._committed_at = 0.0
        self.asleep = False
        self._stopping = False
        self._wake = threading.Event()
        self._flights: deque[Flight] = deque()
        self._flying = 0  # bytes of them
        self._runs: dict[Part, Flight] = {}  # records in one piece that are being written
        self._busy: Counter[Part] = Counter()  # how many flights each part waits for
        self._stamps: deque[tuple[int, float]] = deque()  # when records came, every few ms
        self._pens = Pens()
        self._arrangements = Arrangements()
        self.arrivals = Arrivals(self._room)
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

    def rouse(self) -> None:
        """Wake the thread, for whoever has laid down a record by a desk."""
        self.ring.asked = True
        self.nudge()

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
            while not self._stopping or self.pending or self._flights:
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
            self._pens.stop()
            self.arrivals.stop()

    def _rest(self) -> None:
        """Sleep until there is something to write or to commit."""
        if self._flights:
            pass
        elif self.pending or any(part.is_dirty for part in self.open_parts):
            self._wake.wait(GATHER_SECONDS)
        else:
            self.asleep = True
            if not self.pending and not self._stopping:
                self._wake.wait()
            self.asleep = False
        self._wake.clear()
        self.ring.asked = False  # not before: what came in between would wait for the next

    def _commit(self) -> None:
        """Commit all parts but those that wait for values under way, whose journal has the rest."""
        for part in self.open_parts:
            if not self._busy[part]:
                part.commit_in_time()
        self._committed_at = time.monotonic()

    def _seal(self, part: Part) -> None:
        self.open_parts.discard(part)
        self._runs.pop(part, None)
        self._busy.pop(part, None)
        part.seal(self._arrangements)

    def _write_pending(self) -> None:
        """Write all that is pending, but leave off when a commit is due."""
        while self.pending or self._flights:
            if not self.pending:
                self._land()
                continue
            kind, part, _, nbytes, *_ = self.pending[0]
            if kind == SEAL:
                self.pending.popleft()
                self._launch(Flight(0, 0, partial(self._seal, part)))
            elif kind == schema.WRAP:
                self.pending.popleft()
                self._num_laid += bool(nbytes)
                self._launch(Flight(0, 0, partial(self._unwrap, nbytes)))
            else:
                self._write_run(part)
            self._land_some()
            late = time.monotonic() - self._committed_at
            if late >= (LATEST_SECONDS if self._flights else COMMIT_SECONDS):
                break

    def _launch(self, flight: Flight, errand: Errand | None = None) -> None:
        self._pens.begin(flight, *([errand] if errand else []))
        self._flights.append(flight)
        self._flying += flight.nbytes

    def _land_some(self) -> None:
        """Free what has been written; wait only while too much is under way."""
        flights = self._flights
        while flights and (not flights[0].num_left or self._flying > MOST_FLYING):
            self._land()

    def _land(self) -> None:
        """Wait for the oldest flight, and free what it has written."""
        flight = self._flights[0]
        self._pens.end(flight)
        flight.land()
        self._flights.popleft()
        self._flying -= flight.nbytes
        if not flight.count:
            return
        with self.lock:
            self._sequence += flight.count
            self.ring.release(flight.nbytes, self._sequence)
            while self._stamps and self._stamps[0][0] < self._sequence:
                self._stamps.popleft()
            self.freed.notify_all()

    def _unwrap(self, nbytes: int) -> None:
        with self.lock:
            self._sequence += bool(nbytes)
            self.ring.unwrap(nbytes, self._sequence)
            self.freed.notify_all()

    def _write_run(self, part: Part) -> None:
        """Finish the records of `part` that lie one after another, then write them at once.

        A large value is the last of them, and leaves the rest to the thread that writes it.
        """
        began = part.end
        most = min(max(SMALL_RUN, self.ring.reach // 4), LARGE_RUN)
        self.open_parts.add(part)
        start, stop, count, large = self._finishing.finish(self.pending, part, most)
        content = self._room[start:stop]
        if large is not None:
            self._write_large(large, content, began, count + 1)
        else:
            self._write_small(part, content, began, count)

    def _write_small(self, part: Part, content: memoryview, began: int, count: int) -> None:
        self._num_laid += count
        nbytes = len(content)
        flight = self._flight(part, nbytes, count, partial(self._count, part, self._num_laid))
        self._end_run(part)
        if nbytes >= SMALLEST_SHARED:
            self._runs[part] = flight
            self._launch(flight, partial(part.write, content, began))
        else:
            part.write(content, began)
            self._launch(flight)

    def _flight(self, part: Part, nbytes: int, count: int, land: Errand) -> Flight:
        """Records that `part` waits for until they land."""
        self._busy[part] += 1

        def landed() -> None:
            self._busy[part] -= 1
            land()

        return Flight(nbytes, count, landed)

    def _end_run(self, part: Part) -> None:
        """Wait for the run of `part` that is being written, before any is written behind it.

        While it is the last of its file, a kill leaves a file too short for what is missing.
        """
        if flight := self._runs.pop(part, None):
            self._pens.end(flight)

    def _count(self, part: Part, sequence: int) -> None:
        part.sequence = sequence

    def _write_large(self, entry: Laid, before: memoryview, began: int, count: int) -> None:
        """Have a large value digested and written, with the run `before` it, by a thread."""
        _, part, place, total, call, form, number, order, wait, given = entry
        if wait is not None:
            self._finishing.receive(wait, place)
        address, start = part.end, form.prefix_nbytes
        part.end = address + total
        row = part.num_rows
        part.add_value(call, form, number, order, address, address + start, b"")
        self._finishing.await_digest(part, row)
        self._num_laid += count
        self._end_run(part)
        found = [given]
        land = partial(self._complete, part, row, found, self._num_laid)
        write = partial(self._put_large, part, before, began, place, total, address, form, found)
        self._launch(self._flight(part, len(before) + total, count, land), write)

    def _put_large(
        self, part: Part, before: memoryview, began: int, place: int, total: int, address: int,
        form: Template, found: list[str],
    ) -> None:  # fmt: skip
        """Write a large value; its prefix, which makes it valid, is last."""
        part.write(before, began)
        start = form.prefix_nbytes
        content = self._room[place + start : place + total]
        digest = xxh3_128()
        for at in range(0, len(content), PIECE_NBYTES):
            piece = content[at : at + PIECE_NBYTES]
            if not found[0]:
                digest.update(piece[: form.nbytes - at])  # without what fills the record up
            part.write(piece, address + start + at)
        found[0] = found[0] or digest.hexdigest()
        self._finishing.fill_in(place, address, form, found[0].encode())
        part.write(self._room[place : place + start], address)

    def _complete(self, part: Part, row: int, found: list[str], sequence: int) -> None:
        """Tell all who link to a large value, which is in the file, its digest."""
        self._finishing.tell_digest(part, row, found[0].encode())
        part.sequence = sequence

    def _fail(self, error: BaseException) -> None:
        """Stop: keep what is in the parts, free the ring, and let the producer know."""
        self._pens.stop(now=True)
        self._flights.clear()
        for part in self.open_parts:
            try:
                part.close()
            except OSError:  # the disk refuses even that; a scan finds the records all the same
                continue
        with self.lock:
            self.error = error
            self.pending.clear()
            self.freed.notify_all()
