"""The bytes of one object by ranges: neighbours asked for together, and ahead of their use.

Whoever knows what will be read says so with `expect`. What came stays in memory, up to a bound, and
on disk where there is a cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from dumpcmp.archive.stores.kept import KeptRanges, kept_of
from dumpcmp.archive.stores.lately import LatelyRead
from dumpcmp.archive.stores.store import ObjectTold, Store

LONGEST_RUN = 8 << 20  # bytes that are asked for at once, unless one value has more
AHEAD = 3  # runs that are asked for before they are needed
SMALL_GAP = 1 << 10  # bytes nobody needs between two ranges: less than a request of its own costs
GAP_SHARE = 0.05  # of what is needed: more may lie between, and still comes along

Range = tuple[int, int]  # first byte and number of bytes


@dataclass(eq=False)
class Run:
    """Ranges that are asked for together: where they begin, what they span, and which they are."""

    start: int
    nbytes: int
    ranges: list[Range]
    needed: int

    def takes(self, start: int, nbytes: int) -> bool:
        """Whether the next range joins this run, and then it does."""
        end = max(self.start + self.nbytes, start + nbytes)
        gap = max(0, start - self.start - self.nbytes)
        waste = end - self.start - self.needed - nbytes
        if end - self.start > LONGEST_RUN:
            return False
        if gap > SMALL_GAP and waste > GAP_SHARE * (self.needed + nbytes):
            return False
        self.nbytes = end - self.start
        self.ranges.append((start, nbytes))
        self.needed += nbytes
        return True


def runs_of(ranges: Iterable[Range]) -> Iterator[Run]:
    """The ranges in order of their place, neighbours together."""
    run: Run | None = None
    for start, nbytes in sorted(set(ranges)):
        if run is None or not run.takes(start, nbytes):
            if run is not None:
                yield run
            run = Run(start, nbytes, [(start, nbytes)], nbytes)
    if run is not None:
        yield run


class Ranges:
    """One object of a store, read by ranges."""

    def __init__(self, store: Store, key: str) -> None:
        self.store, self.key = store, key
        self.told: ObjectTold = store.told_of(key)
        self.nbytes = self.told.nbytes
        self._name = f"{key}\0{self.told.identity}"
        self._kept: KeptRanges | None = kept_of(store.scheme, key, self.told)
        self._runs: list[Run] = []
        self._places: dict[Range, int] = {}  # of a range that is expected, its run

    def expect(self, ranges: Iterable[Range]) -> None:
        """Say what will be read, so that neighbours come together."""
        fresh = [each for each in ranges if each[1] and not self._is_here(each)]
        for run in runs_of(fresh):
            self._places |= dict.fromkeys(run.ranges, len(self._runs))
            self._runs.append(run)

    def _is_here(self, each: Range) -> bool:
        return (
            each in self._places
            or self._held.get((self._name, *each)) is not None
            or (self._kept is not None and each in self._kept)
        )

    def read(self, start: int, nbytes: int) -> memoryview:
        """Exactly `nbytes` from `start`."""
        if self._kept is not None and (kept := self._kept.get(start, nbytes)) is not None:
            return memoryview(kept)
        place = self._places.get((start, nbytes))
        if place is None:
            return memoryview(self._coming(Run(start, nbytes, [(start, nbytes)], nbytes)).result())
        futures = [self._coming(run) for run in self._runs[place : place + 1 + AHEAD]]
        at = start - self._runs[place].start
        return memoryview(futures[0].result())[at : at + nbytes]

    @property
    def _held(self) -> LatelyRead:
        return self.store.held

    def _coming(self, run: Run) -> Future[bytes]:
        name = (self._name, run.start, run.nbytes)
        future = self._held.get(name)
        if future is None:
            future = self.store.threads.submit(self._fetch, run)
            self._held.put(name, future)
        return future

    def _fetch(self, run: Run) -> bytes:
        content = self.store.read(self.key, run.start, run.nbytes)
        if self._kept is not None:
            for start, nbytes in run.ranges:
                self._kept.put(start, content[start - run.start : start - run.start + nbytes])
        return content


def forget_below(store: Store, key: str) -> None:
    """Let go of what is expected of objects below `key`: whoever asks again opens them again."""
    here = os.getpid()
    for name in [each for each in _OPENED if each[:2] == (here, store.scheme)]:
        if name[2].startswith(f"{key}/"):
            del _OPENED[name]


_OPENED: dict[tuple[int, str, str], Ranges] = {}


def ranges_of(store: Store, key: str) -> Ranges:
    """The bytes of an object, opened once for all that read it in this process."""
    name = (os.getpid(), store.scheme, key)
    if (found := _OPENED.get(name)) is None or found.told != store.told_of(key):
        found = _OPENED[name] = Ranges(store, key)
    return found
