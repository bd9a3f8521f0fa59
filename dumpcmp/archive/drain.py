"""The writer thread: takes finished records from the ring and writes them, in large pieces."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from xxhash import xxh3_128_hexdigest

from dumpcmp.archive import journal
from dumpcmp.archive.encoder import DATASET_ADDRESS
from dumpcmp.archive.journal import ADDRESS, seal_prefix
from dumpcmp.archive.part import Part
from dumpcmp.archive.ring import Ring
from dumpcmp.archive.schema import MAGIC, PREFIX_HEADER

COMMIT_SECONDS = 0.05  # half of what is promised: a commit itself takes time too
GATHER_SECONDS = 0.01
GATHER_NBYTES = 1 << 20
LARGEST_WRITE = 8 << 20
SEAL = 0  # an entry that has no bytes in the ring: the part is finished

# kind, part, place in the ring, bytes there, and what the kind needs
Entry = tuple[Any, ...]
_DATA_ADDRESS_AT = PREFIX_HEADER + DATASET_ADDRESS


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
        self.pending: deque[Entry] = deque()
        self.error: BaseException | None = None
        self.seconds_waited = 0.0
        self.num_written = 0
        self._open: set[Part] = set()
        self._sequence = 1
        self._committed_at = 0.0
        self._asleep = False
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="dumpcmp writer", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def submit(self, entry: Entry) -> None:
        """Take `entry`; the caller holds `lock` and has put the record into the ring."""
        self.pending.append(entry)
        if (
            self._asleep or self.ring.head - self.ring.tail > GATHER_NBYTES
        ) and not self._wake.is_set():
            self._wake.set()

    def wait_until(self, free: Callable[[], bool]) -> None:
        """Wait, with `lock` held, until `free()` or a failure: the disk is behind the model."""
        began = time.monotonic()
        while self.error is None and not free():
            self._wake.set()
            self.freed.wait(1.0)
        self.seconds_waited += time.monotonic() - began

    def stop(self) -> None:
        """Write everything that was submitted, seal every part, and end the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            while not self._stopping or self.pending:
                self._rest()
                with self.working:
                    self._write_pending()
                    if time.monotonic() - self._committed_at >= COMMIT_SECONDS:
                        self._commit()
            with self.working:
                for part in list(self._open):
                    self._seal(part)
        except BaseException as error:  # whatever it is, the user's program must go on
            self._fail(error)

    def _rest(self) -> None:
        """Sleep until there is something to write or to commit."""
        if self.pending or self._open_and_dirty():
            self._wake.wait(GATHER_SECONDS)
        else:
            self._asleep = True
            if not self.pending and not self._stopping:
                self._wake.wait()
            self._asleep = False
        self._wake.clear()

    def _open_and_dirty(self) -> bool:
        return any(part.dirty for part in self._open)

    def _commit(self) -> None:
        for part in self._open:
            part.commit()
        self._committed_at = time.monotonic()

    def _seal(self, part: Part) -> None:
        self._open.discard(part)
        part.seal()

    def _write_pending(self) -> None:
        """Finish the records that lie one after another in the ring, then write them at once."""
        run: list[Entry] = []
        nbytes = 0
        for _ in range(len(self.pending)):
            entry = self.pending[0]
            if run and not self._continues(run[-1], entry, nbytes):
                self._write_run(run, nbytes)
                run, nbytes = [], 0
            self.pending.popleft()
            if entry[0] == SEAL:
                self._seal(entry[1])
            else:
                run.append(entry)
                nbytes += entry[3]
        if run:
            self._write_run(run, nbytes)

    @staticmethod
    def _continues(last: Entry, entry: Entry, nbytes: int) -> bool:
        return (
            entry[1] is last[1]
            and entry[0] != SEAL
            and entry[2] == last[2] + last[3]
            and nbytes + entry[3] <= LARGEST_WRITE
        )

    def _write_run(self, run: list[Entry], nbytes: int) -> None:
        part: Part = run[0][1]
        start = run[0][2]
        if run[0][0] != journal.WRAP:
            self._open.add(part)
            began = part.end
            for entry in run:
                self._finish(entry, part)
            part.write(self.ring.room[start : start + nbytes], began)
        with self.lock:
            self._sequence += len(run)
            self.ring.release(self.ring.tail + nbytes, self._sequence)
            self.num_written += len(run)
            self.freed.notify_all()

    def _finish(self, entry: Entry, part: Part) -> None:
        """Give a record its address, digest and CRC, and tell `part` of it."""
        kind, _, place, total, *rest = entry
        address = part.end
        part.end = address + total
        part.sequence += 1
        room = self.ring.room
        if kind == journal.VALUE:
            self.finish_value(room[place : place + total], part, address, *rest)
            return
        seal_prefix(room[place : place + total], address)
        if kind == journal.CALL:
            part.add_call(*rest)
        elif kind == journal.FORM:
            part.forms.append(*rest)
        else:
            part.add_link(*rest)

    @staticmethod
    def finish_value(
        record: memoryview, part: Part, address: int, call: int, form: Any, number: int,
        order: int, wait: Callable[[], None] | None,
    ) -> None:  # fmt: skip
        """Finish a value: wait for its copy, digest it, and fill in what depends on its place."""
        if wait is not None:
            wait()
            record[:4] = MAGIC
        prefix = len(form.prefix)
        digest = xxh3_128_hexdigest(record[prefix : prefix + form.nbytes]).encode()
        if form.nbytes:
            ADDRESS.pack_into(record, _DATA_ADDRESS_AT, address + prefix)
        record[form.digest_at : form.digest_at + 32] = digest
        seal_prefix(record[:prefix], address)
        part.add_value(call, form, number, order, address, digest)

    def _fail(self, error: BaseException) -> None:
        """Stop: keep what is in the parts, free the ring, and let the producer know."""
        for part in self._open:
            try:
                part.abandon()
            except OSError:  # the disk refuses even that; a scan finds the records all the same
                continue
        with self.lock:
            self.error = error
            self.pending.clear()
            self.freed.notify_all()
