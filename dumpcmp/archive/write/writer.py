"""The sink of a capture: copies what it receives into a ring that has the file's layout."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dumpcmp.archive import paths
from dumpcmp.archive.locks import WRITING, hold
from dumpcmp.archive.paths import RankDirectory, now
from dumpcmp.archive.stores.urls import here
from dumpcmp.archive.write.begun import opening_facts
from dumpcmp.archive.write.drain import Drain
from dumpcmp.archive.write.objects import Template
from dumpcmp.archive.write.plans import Steps
from dumpcmp.archive.write.recovery import rescue
from dumpcmp.archive.write.ring import Borrower, Memory, make_ring
from dumpcmp.archive.write.staging import Staging
from dumpcmp.handlers import HANDLERS, HOLD
from dumpcmp.nouns.errors import ArchiveError, warn_of
from dumpcmp.nouns.record import Call, Record, Source, Where

RING_NBYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a capture has come, for a live line."""

    num_records: int
    nbytes: int
    seconds_waited: float  # for a disk that is slower than the model
    buffer: int  # bytes of memory that may hold what the disk has not taken yet
    queued: int  # bytes that wait there now
    nbytes_shared: int  # of `nbytes`, which an earlier step had: not written again


class ArchiveWriter:
    """Writes one rank's part of an archive: a `Sink` that several threads may share.

        with ArchiveWriter("d1", run={"mode": "eager"}) as sink:
            sink.call(call)
            sink.put(record, source)

    Trouble while writing warns once, ends the capture and leaves the program alone.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rank: int = 0,
        world_size: int = 1,
        run: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        part_nbytes: int = 1 << 30,
        ring_nbytes: int = RING_NBYTES,
        memory: Memory = "shared",
        buffer: int | None = None,
        shares: bool = True,
    ) -> None:
        root = here(path, "written directly").absolute()  # wherever the program goes meanwhile
        self._directory = RankDirectory(root, rank, world_size)
        paths.clear_rings()
        self._directory.create(overwrite=overwrite)
        self._held = _hold(self.path)
        self.run: dict[str, Any] = dict(run or {})
        self._ring = make_ring(ring_nbytes, memory, self.path, buffer)
        self._drain = Drain(self._ring)
        # It stays a producer's turn while it waits for room and others have the lock: what one
        # lays down in several records is numbered by their order.
        self._turn, self._lock = threading.Lock(), self._drain.lock
        self._steps = Steps(self._directory, part_nbytes, self._drain, shares=shares)
        self._staging = Staging(self._drain, self._steps, self._turn.locked)
        self._error: BaseException | None = None  # where the program is, not in the thread
        self._told = False
        self._closed = self._stopped = False
        ring = self._ring.path
        self._facts = opening_facts(self._directory, self.run, ring.name if ring else None)
        try:
            self._directory.write_run(self._facts)
        except OSError as error:
            self._ring.close()
            os.close(self._held)
            raise ArchiveError(
                f"cannot write {self.path}: {error.strerror}", hint="choose a disk with room"
            ) from error
        _LIVE.add(self)
        HANDLERS.begin()
        atexit.register(self.close)
        self._drain.start()

    @property
    def path(self) -> Path:
        """The rank's own directory."""
        return self._directory.path

    def lend_to(self, borrower: Borrower) -> None:
        """Let `borrower`, who writes for a device, know of the memory that values are put into.

        Other memory than shared memory is not lent: a device cannot write to files.
        """
        with self._turn, self._lock:
            if self._ring.is_shared:
                self._ring.lend_to(borrower)

    @property
    def active(self) -> bool:
        """Whether the sink still takes Records: False after `close` and after trouble."""
        return not self._stopped and self._drain.error is None

    @property
    def desk(self) -> Staging:
        """Where plain records are laid down at once; who does that holds the interpreter."""
        return self._staging

    @property
    def problem(self) -> str:
        """Once it is closed: why the capture stopped early; empty where it did not."""
        return str(self._facts["problem"])

    @property
    def progress(self) -> Progress:
        """What has been received so far."""
        staging, ring = self._staging, self._ring
        waited, (_, again) = self._drain.seconds_waited, self._steps.shared
        return Progress(staging.num_records, staging.nbytes, waited, ring.most, ring.used, again)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        self.close("" if kind is None else f"the program raised {kind.__name__}: {error}")

    def call(self, call: Call) -> None:
        """Receive a call, before the Records of its values. The first of its name stays."""
        laid = self._staging.lay_told(call)
        if laid is None:
            (self._take if HOLD.depth else self._receive)(self._staging.take_call, call)
        elif not laid:
            self._rouse()

    def put(self, record: Record, source: Source | None) -> None:
        """Receive a value; `source` is None for a link (`same_as`) or a `problem`."""
        laid = self._staging.lay_record(record, source)
        if laid is None:
            (self._take if HOLD.depth else self._receive)(self._staging.take, record, source)
        elif not laid:
            self._rouse()

    def _rouse(self) -> None:
        """Wake the thread that writes: there is more than it knows of."""
        with HOLD:
            self._drain.rouse()

    def text(self, model: str, name: str, text: str) -> None:
        """Receive a readable companion of the run, such as a graph as code."""
        self._receive(self._directory.write_text, model, name, text)

    def settle(self) -> None:
        """Wait until all that was received is in the parts, and no device is waited for."""
        with HOLD, self._turn, self._lock:
            self._drain.wait_until(lambda: self._ring.is_idle)

    def finish_step(self, model: str, step: int) -> None:
        """Say that nothing more of this step will come, so that its part can be sealed now."""
        self._receive(self._staging.end_step, model, step)

    def _receive(self, take: Callable[..., None], *what: Any) -> None:
        """Have `take` do it, unless the capture has ended; trouble here ends it."""
        with HOLD:
            self._take(take, *what)

    def _take(self, take: Callable[..., None], *what: Any) -> None:
        """The same of who holds already: to hold twice costs a microsecond."""
        with self._turn, self._lock:
            if not self._stopped and self._drain.error is None:
                try:
                    take(*what)
                    return
                except Exception as error:
                    self._stop_for(error)
        self._tell()

    def fail(self, error: BaseException) -> None:
        """Record nothing more, since `error` came up in the capture's own work; warn of it once."""
        with HOLD:
            with self._turn, self._lock:
                if not self._stopped:
                    self._stop_for(error)
            self._tell()

    def _stop_for(self, error: BaseException) -> None:
        self._error, self._stopped = error, True
        self._staging.leave()

    def form_of(self, record: Record) -> Template | None:
        """The form of a `record` that was put, by which `put_known` knows values like it."""
        with HOLD, self._turn, self._lock:
            return self._staging.form_of(record)

    def put_known(
        self, call: Call, slot: str, form: Template, source: Source | None, same_as: Where | None
    ) -> bool:
        """Receive a value whose form is known; False where `put` must have it described."""
        if not HOLD.depth:
            return False
        if self._staging.lay_known(call, slot, form, source, same_as):
            return True
        with self._turn, self._lock:
            if self._stopped or self._drain.error is not None:
                return False
            try:
                return self._staging.take_known(call, slot, form, source, same_as)
            except Exception as error:
                self._stop_for(error)
        self._tell()
        return True

    def close(self, problem: str = "") -> None:
        """Write everything that was received, seal the parts, and say so in run.json.

        A signal waits until that is done, unless the disk does not answer.
        """
        with HOLD:
            with self._turn, self._lock:
                if self._closed:
                    return
                self._closed = self._stopped = True
                self._staging.leave()
                self._steps.leave()
            atexit.unregister(self.close)
            _LIVE.discard(self)
            if self._drain.stop():
                self._finish(problem)
            HANDLERS.end()
        self._tell()

    def _finish(self, problem: str) -> None:
        self._ring.close()
        for part in self._drain.open_parts:  # none, unless the thread failed
            rescue(part.path)
        problem = self._trouble() or self._displaced() or problem
        manifest = self._drain.manifest
        self._facts |= {
            "ended": now(),
            "complete": not problem,
            "problem": problem,
            "num_records": self._staging.num_records,
            "nbytes": self._staging.nbytes,
            "num_shared": self._steps.shared[0],
            "nbytes_shared": self._steps.shared[1],
            "manifest": "" if problem else manifest.seal,
            "writer": None,
        }
        try:
            if not problem:
                manifest.write(self.path)
            self._directory.write_run(self._facts)
        except OSError as error:
            self._error = self._error or error
            self._facts["problem"] = self._trouble()
        self._let_go()

    def _displaced(self) -> str:
        """Why what was written is not where it belongs; empty where it is."""
        try:
            if (self.path / WRITING).stat().st_ino == os.fstat(self._held).st_ino:
                return ""
        except OSError:
            pass
        return f"{self.path} was removed or replaced while it was being written"

    def _let_go(self) -> None:
        """Say that nobody writes here any more, to processes that ask."""
        if not self._displaced():
            (self.path / WRITING).unlink(missing_ok=True)
        os.close(self._held)

    def _trouble(self) -> str:
        error = self._drain.error or self._error
        return f"{type(error).__name__}: {error}" if error else ""

    def _tell(self) -> None:
        """Warn of trouble, once, in the thread of the program that is being captured."""
        if self._told or not (trouble := self._trouble()):
            return
        self._told = True
        warn_of(
            f"the capture into {self.path} stopped, and the program goes on: {trouble}\n"
            "  what was written before stays readable; see it with dumpcmp audit",
            stacklevel=3,
        )


def _hold(directory: Path) -> int:
    """Hold the lock by which others know that this directory is being written."""
    try:
        return hold(directory / WRITING)
    except OSError as error:
        raise ArchiveError(
            f"cannot write {directory}: {error.strerror}", hint="choose a disk with room"
        ) from error


_LIVE: weakref.WeakSet[ArchiveWriter] = weakref.WeakSet()


def _before_fork() -> None:
    for writer in list(_LIVE):
        writer._drain.pause()


def _after_fork() -> None:
    """Make all writers inert: a forked child has neither the thread nor the right to the ring.

    Threads that held a lock are not in the child, and would never give it back.
    """
    HANDLERS.after_fork()
    for writer in list(_LIVE):
        writer._closed = writer._stopped = True
        writer._staging.leave()
        writer._turn, writer._lock = threading.Lock(), threading.Lock()
        writer._ring.let_go()
        os.close(writer._held)
        atexit.unregister(writer.close)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
