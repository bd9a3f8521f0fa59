"""What came from a store lately, or is under way: in memory, up to a bound."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock

HELD_NBYTES = 256 << 20  # of memory
FEWEST = 4  # that are held in any case: what is used now, and what comes next
RangeName = tuple[str, int, int]  # of an object as it is now, first byte and number of bytes


@dataclass(eq=False)
class LatelyRead:
    """What came, or is under way, of all objects of a store; what was used longest ago goes."""

    most: int = HELD_NBYTES
    nbytes: int = 0
    futures: OrderedDict[RangeName, Future[bytes]] = field(default_factory=OrderedDict)
    lock: Lock = field(default_factory=Lock)

    def get(self, name: RangeName) -> Future[bytes] | None:
        with self.lock:
            found = self.futures.get(name)
            if found is not None and found.done() and found.exception() is not None:
                self._drop(name)
                return None
            if found is not None:
                self.futures.move_to_end(name)
            return found

    def put(self, name: RangeName, future: Future[bytes]) -> None:
        with self.lock:
            self.futures[name] = future
            self.nbytes += name[2]
            while self.nbytes > self.most and len(self.futures) > FEWEST:
                self._drop(next(iter(self.futures)))

    def _drop(self, name: RangeName) -> None:
        del self.futures[name]
        self.nbytes -= name[2]
