"""Threads that write and digest records several at a time, while those after them arrive."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

MOST_PENS = 12  # of 16 processors, which write 15 GB a second into memory; 14 are no faster

Errand = Callable[[], None]


def num_pens() -> int:
    """As many threads as three quarters of the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
    else:
        usable = os.cpu_count() or 1
    return max(1, min(MOST_PENS, usable * 3 // 4))


class Flight:
    """Records that are under way to the disk: so many bytes of the ring, and so many records.

    Its errands end in any order. `land` comes after them, and after the flights before it.
    """

    __slots__ = ("count", "error", "land", "nbytes", "next", "num_left")

    def __init__(self, nbytes: int, count: int, land: Errand) -> None:
        self.nbytes, self.count, self.land = nbytes, count, land
        self.num_left = 0
        self.error: BaseException | None = None
        self.next: tuple[Flight, Errand] | None = None  # what the same thread does after it


class Pens:
    """A few threads that do whatever errand is next. They are started when there is one."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most or num_pens()
        self._errands: SimpleQueue[tuple[Flight, Errand] | None] = SimpleQueue()
        self._ended = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._given_up = False

    def begin(self, flight: Flight, *errands: Errand) -> None:
        """Start the errands of `flight`; they are done at once where no thread can be had."""
        if errands and len(self._threads) < self._most:
            self._start_threads()
        flight.num_left = len(errands)
        for errand in errands:
            if self._threads:
                self._errands.put((flight, errand))
            else:
                self._do(flight, errand)

    def _start_threads(self) -> None:
        while len(self._threads) < self._most:
            name = f"dumpcmp pen {len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there is no memory for one, or they are too many
                return
            self._threads.append(thread)

    def follow(self, before: Flight, flight: Flight, errand: Errand) -> None:
        """Start the errand of `flight` once `before`, which has one too, is done, if it is well."""
        with self._ended:
            if before.num_left:
                flight.num_left, before.next = 1, (flight, errand)
                return
        if before.error is not None:
            raise before.error
        self.begin(flight, errand)

    def end(self, flight: Flight) -> None:
        """Wait for the errands of `flight`, and raise what one of them raised."""
        if flight.num_left:
            with self._ended:
                self._ended.wait_for(lambda: not flight.num_left)
        if flight.error is not None:
            raise flight.error

    def stop(self, *, now: bool = False) -> None:
        """End the threads, with all errands done, or `now`: with those that have begun."""
        self._given_up = now
        for _ in self._threads:
            self._errands.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _work(self) -> None:
        while (work := self._errands.get()) is not None:
            while work is not None:
                work = self._do(*work)

    def _do(self, flight: Flight, errand: Errand) -> tuple[Flight, Errand] | None:
        """Do an errand; gives the one that follows it."""
        try:
            if not self._given_up and flight.error is None:
                errand()
        except BaseException as error:  # raised again by `end`, in the thread that waits
            flight.error = error
        with self._ended:
            flight.num_left -= 1
            if not flight.num_left:
                self._ended.notify_all()
            following, flight.next = flight.next, None
        if following is not None:
            following[0].error = flight.error
        return following
