"""The writer thread: takes finished records from the ring and writes them, in large pieces."""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from dumpcmp.archive import schema
from dumpcmp.archive.write.arrangement import Arrangements
from dumpcmp.archive.write.arrivals import Arrivals
from dumpcmp.archive.write.finishing import LARGE_NBYTES, SEAL, Finisher, Laid
from dumpcmp.archive.write.lookahead import Lookahead
from dumpcmp.archive.write.objects import Template
from dumpcmp.archive.write.part import Owner, Part
from dumpcmp.archive.write.pens import Errand, Flight, Pens
from dumpcmp.archive.write.recurring import Recurring, SharedPlace
from dumpcmp.archive.write.ring import Ring
from dumpcmp.archive.write.shelving import Shelved, put_body, put_straight, shelved
from dumpcmp.handlers import overdue
from dumpcmp.nouns.record import Source

COMMIT_SECONDS = 0.05  # half of what is promised: a commit itself takes time too
GATHER_SECONDS = 0.01
GATHER_NBYTES = 1 << 20
SMALL_RUN = 1 << 20  # bytes that are finished at once, or a quarter of what the ring reaches
LARGE_RUN = 16 << 20  # but never more than this
MOST_FLYING = 2 << 30  # bytes under way at once
LATEST_SECONDS = 0.5  # a commit of other parts does not wait longer for large values under way
THREAD_NBYTES = 1 << 17  # bytes worth another thread
PATIENCE_SECONDS = 0.5  # a producer waits so long in all before the ring takes more memory


@dataclass(eq=False, slots=True)
class _Together:
    """Records that are written together: their bytes, which take `nbytes` of the ring."""

    began: int  # where they go
    content: bytearray = field(default_factory=bytearray)
    nbytes: int = 0
    count: int = 0

    def add(self, content: memoryview | bytearray, nbytes: int, count: int) -> None:
        """Add so many records."""
        self.content += content
        self.nbytes += nbytes
        self.count += count


def _step(part: Part) -> int:
    """The step of `part`; those that steps share come before all others."""
    return int(part.facts["step"])


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
        self._lookahead = Lookahead(self.pending, self.lock, self._room, self._pens)
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
                for part in sorted(self.open_parts, key=_step):
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
        for part in sorted(self.open_parts, key=_step):  # shared ones first, to which others lead
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
                if part.recurring is not None:
                    self._seal_shared(part.recurring)
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

        A large value is the last of them, and leaves the rest to the thread that writes it. What
        came in another step before is a link; small pieces between links are written together.
        """
        self.open_parts.add(part)
        run = _Together(part.end)
        rest = self._gather(part, run)
        while rest is None and self.pending and self.pending[0][1] is part:
            if self.pending[0][0] == SEAL or run.nbytes > SMALL_RUN:
                break
            rest = self._gather(part, run)
        if run.count:
            self._num_laid += run.count
            flight = self._flight(part, run.nbytes, run.count)
            write = partial(part.write, run.content, run.began)
            self._write_as_run(part, flight, write, len(run.content))
        if rest is not None:
            rest()

    def _gather(self, part: Part, run: _Together) -> Errand | None:
        """Take what comes next of `part` into `run` up to a link, or give what else there is to do.

        Nothing is copied where no link comes before it.
        """
        began, most = part.end, min(max(SMALL_RUN, self.ring.reach // 4), LARGE_RUN)
        start, stop, count, value, digest = self._finishing.finish(self.pending, part, most)
        content = self._room[start:stop]
        if value is None:
            if not run.count or len(content) > THREAD_NBYTES:
                return partial(self._write_small, part, content, began, count)
            run.add(content, len(content), count)
            return None
        digest = digest or self._lookahead.digest_of(value)
        found = shelved(value, digest, self._room, self._seal_shared) if digest else None
        if found is None:
            return partial(self._write_value, value, digest, content, began, count + 1)
        if found.write is not None or len(content) > THREAD_NBYTES:
            return partial(self._write_link, value, found, content, began, count + 1)
        self.open_parts.update(() if found.part is None else (found.part,))
        run.add(content, len(content), count)
        run.add(self._link(value, found.place)[0], value[3], 1)
        return None

    def _write_value(
        self, value: Laid, digest: str, before: memoryview, began: int, count: int
    ) -> None:
        """Write a value that no other step has, with the run `before` it."""
        _, part, place, total, *_ = value
        if total > LARGE_NBYTES:
            self._write_large(value, digest, before, began, count)
        else:
            self._finishing.finish_value(value, part, digest)
            content = self._room[place - len(before) : place + total]
            self._write_small(part, content, began, count)

    def _write_small(self, part: Part, content: memoryview, began: int, count: int) -> None:
        self._num_laid += count
        nbytes = len(content)
        flight = self._flight(part, nbytes, count)
        self._write_as_run(part, flight, partial(part.write, content, began), nbytes)

    def _write_as_run(self, part: Part, flight: Flight, write: Errand, nbytes: int) -> None:
        """Have `write` done, on a thread where it is worth one; nothing comes behind before."""
        self._end_run(part)
        if nbytes >= THREAD_NBYTES:
            self._runs[part] = flight
            self._launch(flight, write)
        else:
            write()
            self._launch(flight)

    def _flight(self, part: Part, nbytes: int, count: int, *others: Part) -> Flight:
        """Records that `part` waits for until they land, and perhaps `others`."""
        parts, sequence = (part, *others), self._num_laid
        self._busy.update(parts)

        def landed() -> None:
            self._busy.subtract(parts)
            part.sequence = sequence

        return Flight(nbytes, count, landed)

    def _end_run(self, part: Part) -> None:
        """Wait for the run of `part` that is being written, before any is written behind it.

        While it is the last of its file, a kill leaves a file too short for what is missing.
        """
        if flight := self._runs.pop(part, None):
            self._pens.end(flight)

    def _write_large(
        self, value: Laid, digest: str, before: memoryview, began: int, count: int
    ) -> None:
        """Have a large value written, with the run `before` it, by a thread.

        Where its digest is not known, that thread takes it too.
        """
        _, part, place, total, *owner, _, _ = value
        address, form, row = part.end, owner[1], part.num_rows
        part.end = address + total
        part.add_value(*owner, address, address + form.prefix_nbytes, digest.encode())
        self._num_laid += count
        self._end_run(part)
        found = [digest]
        write = partial(self._put_large, part, before, began, place, total, address, form, found)
        flight = self._flight(part, len(before) + total, count)
        if not digest:
            self._finishing.await_digest(part, row)
            settle = self._lookahead.await_digest(value, flight, found)
            flight.land = partial(self._complete, part, row, found, flight.land, settle)
        self._launch(flight, write)

    def _put_large(
        self, part: Part, before: memoryview, began: int, place: int, total: int, address: int,
        form: Template, found: list[str],
    ) -> None:  # fmt: skip
        """Write a large value; its prefix, which makes it valid, is last."""
        part.write(before, began)
        body = address + form.prefix_nbytes
        content = self._room[place + form.prefix_nbytes : place + total]
        found[0] = put_body(part, content, body, 0 if found[0] else form.nbytes) or found[0]
        self._finishing.fill_in(place, address, form, found[0].encode())
        part.write(self._room[place : place + form.prefix_nbytes], address)

    def _complete(self, part: Part, row: int, found: list[str], *others: Errand) -> None:
        """Tell all who link to a large value, which is in the file, its digest; do the `others`."""
        self._finishing.tell_digest(part, row, found[0].encode())
        for errand in others:
            errand()

    def _write_link(
        self, value: Laid, found: Shelved, before: memoryview, began: int, count: int
    ) -> None:
        """Write a link in the place of a value that steps share, with the run `before` it.

        The value is in its file before the link is in its own.
        """
        part, total, place = value[1], value[3], found.place
        record, address = self._link(value, place)
        self._num_laid += count

        def write() -> None:
            if found.write is not None:
                found.write()
            part.write(before, began)
            part.write(record, address)

        others = () if found.part is None else (found.part,)
        self.open_parts.update(others)
        flight = self._flight(part, len(before) + total, count, *others)
        if found.write is None:
            self._write_as_run(part, flight, write, len(before))
            return
        part.recurring.coming[place.part, place.row] = flight
        self._end_run(part)
        self._launch(flight, write)

    def _link(self, value: Laid, place: SharedPlace) -> tuple[bytearray, int]:
        """Have the part of `value` lead to `place`, where it lies by now: the record, and where."""
        _, part, _, _, *owner, _, _ = value
        if coming := part.recurring.coming.get((place.part, place.row)):
            self._pens.end(coming)
        address = part.end
        record = self._finishing.link_record(value, address, (place.part, place.row))
        part.end = address + len(record)
        part.add_link(tuple(owner), place.part, place.row, place.told, place.path)
        return record, address

    def write_straight(self, part: Part, owner: Owner, source: Source) -> None:
        """Write a value that is too large for the ring, which is empty; `working` is held."""
        others = put_straight(part, owner, source, self._seal_shared)
        self.open_parts.update({part} | ({others} if others else set()))

    def _seal_shared(self, shared: Recurring) -> None:
        """Let the shared parts that are being written be sealed, once all of them is written."""
        for holder in shared.release():
            self._launch(Flight(0, 0, partial(self._seal, holder)))

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
