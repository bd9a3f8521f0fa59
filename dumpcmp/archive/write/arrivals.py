"""Watches for copies that a device makes into the ring, and says there when each has arrived."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from dumpcmp.archive.schema import MAGIC

Wait = Callable[[], None]


class Arrivals:
    """A thread that waits for copies in their order, however far behind the disk is.

    What has arrived is marked in the ring, where a kill does not harm it, and what it was copied
    from is let go. The thread is started for the first copy.
    """

    def __init__(self, room: memoryview) -> None:
        self._room = room
        self._coming: SimpleQueue[tuple[int, Wait] | None] = SimpleQueue()
        self._arrived = threading.Condition()
        self._num_watched = self._num_arrived = 0
        self._errors: dict[int, BaseException] = {}
        self._thread: threading.Thread | None = None

    def watch(self, place: int, wait: Wait) -> Wait:
        """Watch for what `wait` waits for, at `place` of the ring; gives another way to wait."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="dumpcmp port", daemon=True)
            self._thread.start()
        number = self._num_watched
        self._num_watched = number + 1
        self._coming.put((place, wait))
        return partial(self._wait_for, number)

    def stop(self) -> None:
        """End the thread, once all that it watches for has arrived."""
        if self._thread is not None:
            self._coming.put(None)
            self._thread.join()

    def _wait_for(self, number: int) -> None:
        if self._num_arrived <= number:
            with self._arrived:
                self._arrived.wait_for(lambda: self._num_arrived > number)
        if error := self._errors.get(number):
            raise error

    def _work(self) -> None:
        while (coming := self._coming.get()) is not None:
            place, wait = coming
            try:
                wait()
                self._room[place : place + len(MAGIC)] = MAGIC
            except BaseException as error:  # raised again in the thread that needs the bytes
                self._errors[self._num_arrived] = error
            del coming, wait
            with self._arrived:
                self._num_arrived += 1
                self._arrived.notify_all()
