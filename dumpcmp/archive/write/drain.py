"""The writer thread: takes finished records from the ring and writes them, in large pieces."""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from dumpcmp.archive import schema
from dumpcmp.archive.manifest import Manifest
from dumpcmp.archive.write.arrivals import Arrivals
from dumpcmp.archive.write.desk import Pending
from dumpcmp.archive.write.finishing import SEAL, Laid
from dumpcmp.archive.write.flights import Flights
from dumpcmp.archive.write.lookahead import Lookahead
from dumpcmp.archive.write.part import Owner, Part
from dumpcmp.archive.write.pens import Flight, Pens
from dumpcmp.archive.write.ring import Ring
from dumpcmp.archive.write.scribe import Scribe
from dumpcmp.archive.write.shelving import put_straight
from dumpcmp.handlers import overdue
from dumpcmp.nouns.record import Source

COMMIT_SECONDS = 0.05  # half of what is promised: a commit itself takes time too
GATHER_SECONDS = 0.01
GATHER_NBYTES = 1 << 20
LATEST_SECONDS = 0.5  # a commit of other parts does not wait longer for large values under way
PAUSE_SECONDS = 1.0  # that a fork waits for the threads to end
PATIENCE_SECONDS = 0.5  # a producer waits so long in all before the ring takes more memory


def _step(part: Part) -> int:
    """The step of `part`; those that steps share come before all others."""
    return int(part.facts["step"])


def _no_answer() -> OSError:
    return OSError(errno.EINTR, "the disk did not answer while a signal was waiting")


def _ended_early() -> RuntimeError:
    return RuntimeError("the thread that writes has ended")


class Drain:
    """Writes what is `submit`ted, in order, on a thread of its own.

    `lock` guards the ring's positions. `working` is held while parts change. After a failure
    `error` is set, the ring is free, and nothing more is written.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.lock = threading.Lock()
        self.freed = threading.Condition(self.lock)
        self.working = threading.Lock()
        self.pending = Pending()
        self.error: BaseException | None = None
        self.seconds_waited = self._impatience = 0.0
        self.open_parts: set[Part] = set()
        self._sequence = 1  # of the oldest record in the ring
        self._committed_at = 0.0
        self._stopping = self._pausing = self._is_paused = False
        self._turning = threading.Lock()  # whoever ends the thread for a while, or starts it again
        self._wake = threading.Event()
        self._stamps: deque[tuple[int, float]] = deque()  # when records came, every few ms
        self._pens = Pens()
        self._flights = Flights(self._pens)
        lookahead = Lookahead(self.pending, self.lock, ring.room, self._pens)
        self._scribe = Scribe(ring, self.pending, lookahead, self._flights, self.open_parts)
        self.arrivals = Arrivals(ring.room)
        self._thread = self._new_thread()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._work, name="dumpcmp writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def pause(self) -> None:
        """End the threads that write; who wakes them next starts them again.

        A process that forks is warned of threads that it has besides its own.
        """
        with self._turning:
            self._pausing = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(PAUSE_SECONDS)  # the program goes on where a disk does not answer

    def _go_on(self) -> None:
        with self._turning:
            self._pausing = False
            if self._is_paused:
                self._start_again()

    def _start_again(self) -> None:
        thread = self._new_thread()
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be had: the program goes on
            self._end_with(error)
        else:
            self._thread = thread
        self._is_paused = False

    def submit(self, entry: Laid) -> None:
        """Take `entry`; the caller holds `lock` and has put the record into the ring."""
        self.pending.append(entry)
        if self.ring.asleep or self.ring.used > GATHER_NBYTES:
            self.nudge()

    def nudge(self) -> None:
        if not self._wake.is_set():
            self._wake.set()
        if self._pausing:
            self._go_on()

    def rouse(self) -> None:
        """Wake the thread, for whoever has laid down a record by a desk."""
        self.ring.asked = True
        self.nudge()

    def wait_until(self, free: Callable[[], bool]) -> None:
        """Wait, with `lock` held, until `free()` or a failure: the disk is behind the model."""
        began = time.monotonic()
        while self.error is None and not free():
            self.nudge()
            self.freed.wait(1.0)
            if overdue():
                self._end_with(_no_answer())
            elif self.error is None and not (self._thread.is_alive() or self._is_paused):
                self._end_with(_ended_early())
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
        self.nudge()
        while self._thread.is_alive():
            self._thread.join(1.0)
            if self._thread.is_alive() and overdue():
                self._end_with(_no_answer())
                return False
        if self.error is None and (self.pending or self._flights):
            self._end_with(_ended_early())
        return True

    def _work(self) -> None:
        is_pause = False
        try:
            while not self._stopping or self.pending or self._flights:
                self._rest()
                with self.working:
                    self._write_pending()
                    if self._pausing or time.monotonic() - self._committed_at >= COMMIT_SECONDS:
                        self._commit()
                if is_pause := self._pausing and not self._stopping:
                    return
            with self.working:
                for part in sorted(self.open_parts, key=_step):
                    self._scribe.seal(part)
        except BaseException as error:  # whatever it is, the user's program must go on
            self._fail(error)
        finally:
            self._pens.stop()
            if is_pause:
                self._end_for_now()
            else:
                self.arrivals.stop()

    def _end_for_now(self) -> None:
        """The thread ends, unless somebody has asked for it since."""
        with self._turning:
            self.ring.asleep, self.ring.asked = True, False
            self._is_paused = True
            if self._stopping or not self._pausing:
                self._start_again()

    def _rest(self) -> None:
        """Sleep until there is something to write or to commit."""
        if self._flights:
            pass
        elif self.pending or any(part.is_dirty for part in self.open_parts):
            self._wake.wait(GATHER_SECONDS)
        else:
            self.ring.asleep = True
            if not self.pending and not self._stopping:
                self._wake.wait()
            self.ring.asleep = False
        self._wake.clear()
        self.ring.asked = False  # not before: what came in between would wait for the next

    def _commit(self) -> None:
        """Commit all parts but those that wait for values under way, whose journal has the rest."""
        for part in sorted(self.open_parts, key=_step):  # shared ones first, to which others lead
            if not self._flights.busy[part]:
                part.commit_in_time()
        self._committed_at = time.monotonic()

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
                    self._scribe.seal_shared(part.recurring)
                self._scribe.seal_later(part)
            elif kind == schema.WRAP:
                self.pending.popleft()
                self._flights.sequence += bool(nbytes)
                self._flights.launch(Flight(0, 0, partial(self._unwrap, nbytes)))
            else:
                self._scribe.write_run(part)
            self._flights.in_haste = self._stopping or self.ring.is_half_full
            while self._flights.is_due:
                self._land()
            late = time.monotonic() - self._committed_at
            if late >= (LATEST_SECONDS if self._flights else COMMIT_SECONDS):
                break

    def _land(self) -> None:
        """Wait for the oldest flight, and free what it has written."""
        flight = self._flights.land()
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

    @property
    def manifest(self) -> Manifest:
        """The parts of steps that were sealed."""
        return Manifest(tuple(self._scribe.sealed))

    def write_straight(self, part: Part, owner: Owner, source: Source) -> None:
        """Write a value that is too large for the ring, which is empty; `working` is held."""
        others = put_straight(part, owner, source, self._scribe.seal_shared)
        self.open_parts.update({part} | ({others} if others else set()))

    def _end_with(self, error: BaseException) -> None:
        """Have it be known that nothing more is written, by who lays records down at once too."""
        self.error, self.ring.failed = error, True

    def _fail(self, error: BaseException) -> None:
        """Stop: keep what is in the parts, free the ring, and let the producer know."""
        self._end_with(error)  # first: there may be no memory for anything else
        self._flights.give_up()
        for part in self.open_parts:
            try:
                part.close()
            except OSError:  # the disk refuses even that; a scan finds the records all the same
                continue
        with self.lock:
            self.pending.clear()
            self.freed.notify_all()
