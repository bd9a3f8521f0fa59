"""What is under way to the disk: it ends in any order, and lands in the order of the ring."""

from __future__ import annotations

from collections import Counter, deque

from dumpcmp.archive.write.part import Part
from dumpcmp.archive.write.pens import Errand, Flight, Pens

MOST_FLYING = 2 << 30  # bytes under way at once
CALM_FLYING = 256 << 20  # and while there is much room left: a program's own copies come first
THREAD_NBYTES = 1 << 17  # bytes worth another thread


class Flights:
    """The flights under way, oldest first, and the parts that wait for them.

    One thread uses this; the errands are done by `pens`.
    """

    def __init__(self, pens: Pens) -> None:
        self.sequence = 1  # of the next record to be under way
        self.busy: Counter[Part] = Counter()  # how many flights each part waits for
        self._pens = pens
        self._flights: deque[Flight] = deque()
        self._flying = 0  # bytes of them
        self.in_haste = True  # whoever fills the ring may soon have to wait
        self._runs: dict[Part, Flight] = {}  # records in one piece that are being written

    def __len__(self) -> int:
        return len(self._flights)

    def of(self, part: Part, nbytes: int, count: int, *others: Part) -> Flight:
        """The next `count` records, which `part` waits for until they land, as do `others`."""
        self.sequence += count
        parts, sequence = (part, *others), self.sequence
        self.busy.update(parts)

        def landed() -> None:
            self.busy.subtract(parts)
            part.sequence = sequence

        return Flight(nbytes, count, landed)

    def launch(self, flight: Flight, errand: Errand | None = None) -> None:
        """Have `errand` done by a thread, if there is one; `flight` lands after those before it."""
        self._pens.begin(flight, *([errand] if errand else []))
        self._take(flight)

    def launch_run(self, part: Part, flight: Flight, write: Errand, nbytes: int) -> None:
        """Have `write` done, after the runs of `part` that came before.

        While a run is the last of its file, a kill leaves a file too short for what is missing.
        So a thread that writes one goes on to the next.
        """
        before = self._runs.get(part)
        if before is not None and before.num_left:
            self._pens.follow(before, flight, write)
            self._runs[part] = flight
            self._take(flight)
            return
        self.end_run(part)  # which is done, and may have failed: then nothing comes behind it
        if nbytes >= THREAD_NBYTES:
            self._runs[part] = flight
            self.launch(flight, write)
        else:
            write()
            self.launch(flight)

    def _take(self, flight: Flight) -> None:
        self._flights.append(flight)
        self._flying += flight.nbytes

    def end_run(self, part: Part) -> None:
        """Wait for the runs of `part` that are being written, before any is written behind them."""
        if flight := self._runs.pop(part, None):
            self._pens.end(flight)

    def end(self, flight: Flight) -> None:
        """Wait until all of `flight` is written, whatever has landed."""
        self._pens.end(flight)

    @property
    def is_due(self) -> bool:
        """Whether the oldest is to land: it is written, or too much is under way."""
        flights, most = self._flights, MOST_FLYING if self.in_haste else CALM_FLYING
        return bool(flights) and (not flights[0].num_left or self._flying > most)

    def land(self) -> Flight:
        """Wait for the oldest flight, and have it land."""
        flight = self._flights[0]
        self._pens.end(flight)
        flight.land()
        self._flights.popleft()
        self._flying -= flight.nbytes
        return flight

    def forget(self, part: Part) -> None:
        """Know no more of a part that is sealed."""
        self._runs.pop(part, None)
        self.busy.pop(part, None)

    def give_up(self) -> None:
        """Do nothing more; wait for what has begun."""
        self._pens.stop(now=True)
        self._flights.clear()
