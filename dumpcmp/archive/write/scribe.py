"""Writes the records that are pending: runs of them at once, large values, links to shared ones."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial

from dumpcmp.archive.manifest import PartCount
from dumpcmp.archive.schema import SHARED_STEP
from dumpcmp.archive.write.arrangement import Arrangements
from dumpcmp.archive.write.finishing import LARGE_NBYTES, SEAL, Finisher, Laid
from dumpcmp.archive.write.flights import THREAD_NBYTES, Flights
from dumpcmp.archive.write.lookahead import Lookahead
from dumpcmp.archive.write.objects import Template
from dumpcmp.archive.write.part import Part
from dumpcmp.archive.write.pens import Errand, Flight
from dumpcmp.archive.write.recurring import Recurring, SharedPlace
from dumpcmp.archive.write.ring import Ring
from dumpcmp.archive.write.shelving import Shelved, put_body, shelved

SMALL_RUN = 1 << 20  # bytes that are finished at once, or a quarter of what the ring reaches
LARGE_RUN = 16 << 20  # but never more than this


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


class Scribe:
    """Takes records from `pending`, which lie in `ring`, and has them written by `flights`.

    The parts that it writes to are in `open_parts` until they are sealed.
    """

    def __init__(
        self, ring: Ring, pending: deque[Laid], lookahead: Lookahead, flights: Flights,
        open_parts: set[Part],
    ) -> None:  # fmt: skip
        self._ring, self._room, self._pending = ring, ring.room, pending
        self._finishing = Finisher(ring.room)
        self._lookahead, self._flights = lookahead, flights
        self._open_parts = open_parts
        self._arrangements = Arrangements()
        self.sealed: list[PartCount] = []  # the parts of steps that are finished, in their order

    def write_run(self, part: Part) -> None:
        """Finish the records of `part` that lie one after another, then write them at once.

        A large value is the last of them, and leaves the rest to the thread that writes it. What
        came in another step before is a link; small pieces between links are written together.
        """
        self._open_parts.add(part)
        run = _Together(part.end)
        rest = self._gather(part, run)
        while rest is None and self._pending and self._pending[0][1] is part:
            if self._pending[0][0] == SEAL or run.nbytes > SMALL_RUN:
                break
            rest = self._gather(part, run)
        if run.count:
            flight = self._flights.of(part, run.nbytes, run.count)
            write = partial(part.write, run.content, run.began)
            self._flights.launch_run(part, flight, write, len(run.content))
        if rest is not None:
            rest()

    def _gather(self, part: Part, run: _Together) -> Errand | None:
        """Take what comes next of `part` into `run` up to a link, or give what else there is to do.

        Nothing is copied where no link comes before it.
        """
        began, most = part.end, min(max(SMALL_RUN, self._ring.reach // 4), LARGE_RUN)
        start, stop, count, value, digest = self._finishing.finish(self._pending, part, most)
        content = self._room[start:stop]
        if value is None:
            if not run.count or len(content) > THREAD_NBYTES:
                return partial(self._write_small, part, content, began, count)
            run.add(content, len(content), count)
            return None
        digest = digest or self._lookahead.digest_of(value)
        found = shelved(value, digest, self._room, self.seal_shared) if digest else None
        if found is None:
            return partial(self._write_value, value, digest, content, began, count + 1)
        if found.write is not None or len(content) > THREAD_NBYTES:
            return partial(self._write_link, value, found, content, began, count + 1)
        self._open_parts.update(() if found.part is None else (found.part,))
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
        nbytes = len(content)
        flight = self._flights.of(part, nbytes, count)
        self._flights.launch_run(part, flight, partial(part.write, content, began), nbytes)

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
        self._flights.end_run(part)
        found = [digest]
        write = partial(self._put_large, part, before, began, place, total, address, form, found)
        flight = self._flights.of(part, len(before) + total, count)
        if not digest:
            self._finishing.await_digest(part, row)
            settle = self._lookahead.await_digest(value, flight, found)
            flight.land = partial(self._complete, part, row, found, flight.land, settle)
        self._flights.launch(flight, write)

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

        def write() -> None:
            if found.write is not None:
                found.write()
            part.write(before, began)
            part.write(record, address)

        others = () if found.part is None else (found.part,)
        self._open_parts.update(others)
        flight = self._flights.of(part, len(before) + total, count, *others)
        if found.write is None:
            self._flights.launch_run(part, flight, write, len(before))
            return
        part.recurring.coming[place.part, place.row] = flight
        self._flights.end_run(part)
        self._flights.launch(flight, write)

    def _link(self, value: Laid, place: SharedPlace) -> tuple[bytearray, int]:
        """Have the part of `value` lead to `place`, where it lies by now: the record, and where."""
        _, part, _, _, *owner, _, _ = value
        if coming := part.recurring.coming.get((place.part, place.row)):
            self._flights.end(coming)
        address = part.end
        record = self._finishing.link_record(value, address, (place.part, place.row))
        part.end = address + len(record)
        part.add_link(tuple(owner), place.part, place.row, place.told, place.path)
        return record, address

    def seal_shared(self, shared: Recurring) -> None:
        """Let the shared parts that are being written be sealed, once all of them is written."""
        for holder in shared.release():
            self.seal_later(holder)

    def seal_later(self, part: Part) -> None:
        """Seal `part` once all that is under way has landed."""
        self._flights.launch(Flight(0, 0, partial(self.seal, part)))

    def seal(self, part: Part) -> None:
        """Seal `part`, of which all is written."""
        self._open_parts.discard(part)
        self._flights.forget(part)
        part.seal(self._arrangements)
        if part.facts["step"] != SHARED_STEP:
            self.sealed.append(part.count())
