"""Digests of large values that may have come before: of the next one, and of those behind it.

A value that differs from all before it in a few of its bytes is new: who writes it digests it.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from itertools import islice

from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from dumpcmp.archive.schema import MAGIC, VALUE
from dumpcmp.archive.write.finishing import LARGE_NBYTES, Laid
from dumpcmp.archive.write.pens import Errand, Flight, Pens
from dumpcmp.archive.write.recurring import Coming, Recurring

MOST_RECORDS = 256  # that are looked through for large values
MOST_VALUES = 24  # that are digested ahead
SAMPLE_NBYTES = 4096  # looked at in three places of a value


class Lookahead:
    """Takes digests of values in `room`. `lock` is held by whoever adds to `pending`."""

    def __init__(
        self, pending: deque[Laid], lock: threading.Lock, room: memoryview, pens: Pens
    ) -> None:
        self._pending, self._lock, self._room, self._pens = pending, lock, room, pens
        self._begun: dict[int, tuple[Flight, list[str]]] = {}  # by place in the ring

    def digest_of(self, value: Laid) -> str:
        """The digest of a value that has been taken from `pending`; waits for its bytes.

        Empty of a large one that cannot be shared, or is new.
        """
        _, _, place, total, _, form, _, _, wait, given = value
        if wait is not None:
            wait()
            self._room[place : place + len(MAGIC)] = MAGIC
        if given:
            return str(given)
        if total <= LARGE_NBYTES:
            start = place + form.prefix_nbytes
            return xxh3_128_hexdigest(self._room[start : start + form.nbytes])
        if place not in self._begun:
            if not self._may_be_shared(value):
                return ""
            self._begin(value)
            for other in self._others():
                self._begin(other)
        flight, found = self._begun.pop(place)
        self._pens.end(flight)
        return found[0]

    def await_digest(self, value: Laid, flight: Flight, found: list[str]) -> Errand:
        """Know that the digest of `value`, which is new, will be in `found` after `flight`.

        What comes back is to be done then.
        """
        shared: Recurring | None = value[1].recurring
        step: int = value[1].facts["step"]
        if shared is None:
            return lambda: None
        sample = self._sample(value)

        def settle() -> None:
            shared.known.setdefault(found[0], step)
            if sample in shared.samples:
                shared.samples[sample] = None

        shared.samples[sample] = Coming(flight, settle)
        return settle

    def _may_be_shared(self, value: Laid) -> bool:
        """Whether a large value lasts, or looks as one did that came before."""
        shared: Recurring | None = value[1].recurring
        if shared is None:
            return False
        sample = self._sample(value)
        if shared.lasts(value[5], value[1].facts["step"]):
            shared.samples.setdefault(sample, None)
        if sample not in shared.samples:
            return False
        coming = shared.samples[sample]
        if coming is not None:  # its digest is known once it has arrived
            self._pens.end(coming.flight)
            coming.settle()
        return True

    def _sample(self, value: Laid) -> tuple[int, int]:
        """What tells most values apart: their size, and some of their bytes."""
        nbytes, start = value[5].nbytes, value[2] + value[5].prefix_nbytes
        places = (0, (nbytes - SAMPLE_NBYTES) // 2, nbytes - SAMPLE_NBYTES)
        looks = (self._room[start + at : start + at + SAMPLE_NBYTES] for at in places)
        return nbytes, xxh3_64_intdigest(b"".join(looks))

    def _others(self) -> list[Laid]:
        """Large values that come next and may be shared, whose bytes are there."""
        with self._lock:
            coming = list(islice(self._pending, MOST_RECORDS))
        found = [each for each in coming if each[0] == VALUE and each[3] > LARGE_NBYTES]
        found = [each for each in found if not each[9] and each[2] not in self._begun]
        there = [each for each in found if self._is_there(each)]
        return [each for each in there if self._may_be_shared(each)][:MOST_VALUES]

    def _is_there(self, value: Laid) -> bool:
        place = value[2]
        return value[8] is None or self._room[place : place + len(MAGIC)] == MAGIC

    def _begin(self, value: Laid) -> None:
        if value[2] not in self._begun:
            flight, found = Flight(0, 0, lambda: None), [""]
            self._begun[value[2]] = flight, found
            self._pens.begin(flight, partial(self._digest, value, found))

    def _digest(self, value: Laid, found: list[str]) -> None:
        start = value[2] + value[5].prefix_nbytes
        found[0] = xxh3_128_hexdigest(self._room[start : start + value[5].nbytes])
