"""Finishes the records of the ring: gives each what depends on its place in the file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any
from zlib import crc32

from xxhash import xxh3_128_hexdigest

from dumpcmp.archive import schema
from dumpcmp.archive.encoder import UNDEFINED
from dumpcmp.archive.paths import dataset_path
from dumpcmp.archive.schema import ADDRESS_AT, CRC_AT, MAGIC, PREFIX_HEADER, SHARED
from dumpcmp.archive.write import recurring
from dumpcmp.archive.write.objects import Template
from dumpcmp.archive.write.part import Owner, Part
from dumpcmp.archive.write.recurring import Recurring
from dumpcmp.nouns.built import built
from dumpcmp.nouns.record import Where

LARGE_NBYTES = 4 << 20  # a value that one thread digests and writes while others do others
SEAL = 0  # an entry that has no bytes in the ring: the part is finished
_core: Any = built("dumpcmp.archive.write._finish")
_CALL, _VALUE = schema.CALL, schema.VALUE
_PACK_ADDRESS = schema.ADDRESS.pack_into
_PACK_CRC = schema.CRC.pack_into

# A record in the ring: its kind, its part, its place and bytes there, and what the kind needs.
Laid = tuple[Any, ...]


# The digests that came before, how large a record must be to be among them, the step, and whether
# weights are looked at for themselves.
Sight = tuple[dict[str, Any], int, int, bool]


def _sight(part: Part) -> Sight | None:
    """Which values of `part` are looked at by themselves although they are not large.

    These are such as came in another step before, and weights of a run's first step, since they
    will come again.
    """
    shared: Recurring | None = part.recurring
    if shared is None:
        return None
    step = part.facts["step"]
    return shared.known, recurring.LEAST_NBYTES, step, shared.is_first(step)


class Finisher:
    """Finishes what lies in `room`, the memory of a ring, and tells the parts of it."""

    def __init__(self, room: memoryview) -> None:
        self._room = room
        # Rows of values that are under way, and the links to each, which get its digest too.
        self._undigested: dict[tuple[Part, int], list[tuple[Part, int]]] = {}

    def finish(
        self, pending: deque[Laid], part: Part, most: int
    ) -> tuple[int, int, int, Laid | None, str]:
        """Finish what comes next in `pending` of `part` in one piece, of at most so many bytes.

        Gives where it lies in the ring, how many records it is, and the value behind it that is
        large, came in another step before or lasts, with its digest if that was taken.
        """
        sight = _sight(part)
        if _core is not None:
            found: tuple[int, int, int, Laid | None, str] = _core.finish(
                pending, part, self._room, most, LARGE_NBYTES, self._undigested, xxh3_128_hexdigest,
                self._add_link, sight,
            )  # fmt: skip
            return found
        start = stop = pending[0][2]
        count = 0
        while pending:
            entry = pending[0]
            total = entry[3]
            if entry[1] is not part or entry[2] != stop or entry[0] == SEAL:
                break
            if entry[0] == _VALUE and total > LARGE_NBYTES:
                return start, stop, count, pending.popleft(), ""
            if count and stop + total - start > most:
                break
            pending.popleft()
            if entry[0] == _VALUE:
                digest = self._digest(entry)
                if sight is not None and total > sight[1]:
                    known, _, step, is_first = sight
                    lasts = is_first and entry[5].is_weight
                    if lasts or known.setdefault(digest, step) != step:
                        return start, stop, count, entry, digest
                self.finish_value(entry, part, digest)
            else:
                self._finish_text(*entry)
            stop += total
            count += 1
        return start, stop, count, None, ""

    def await_digest(self, part: Part, row: int) -> None:
        """The digest of the value of `row` is not known yet, and links to it wait for it too."""
        self._undigested[part, row] = [(part, row)]

    def tell_digest(self, part: Part, row: int, digest: bytes) -> None:
        """Tell all who link to the value of `row` its digest."""
        for holder, at in self._undigested.pop((part, row)):
            holder.set_digest(at, digest)

    def _finish_text(self, kind: int, part: Part, place: int, total: int, *rest: Any) -> None:
        """Give a record that is all text its address and CRC."""
        room, address = self._room, part.end
        _PACK_ADDRESS(room, place + ADDRESS_AT, address)
        _PACK_CRC(room, place + CRC_AT, crc32(room[place + 8 : place + total]))
        part.end = address + total
        if kind == _CALL:
            part.told.append(rest)
        elif kind == schema.FORM:
            part.forms.append(*rest)
        else:
            self._add_link(part, *rest)

    def _add_link(self, part: Part, owner: Owner, holder: Part, row: int, first: Where) -> None:
        """Have `part` link to row `row` of `holder`, which is called `first` there."""
        if self._undigested and (holder, row) in self._undigested:
            self._undigested[holder, row].append((part, part.num_rows))
        target = holder.row(row)
        if target[3] >= SHARED:
            path = holder.outside[row][1]
        else:
            path = "" if holder is part else dataset_path(*first)  # within a part it has a header
        part.add_link(owner, holder.number, row, target, path)

    def _digest(self, entry: Laid) -> str:
        """Wait for the copy of a value, and digest its bytes."""
        _, _, place, _, _, form, _, _, wait, given = entry
        if wait is not None:
            self.receive(wait, place)
        if given:
            return str(given)
        start = place + form.prefix_nbytes
        return xxh3_128_hexdigest(self._room[start : start + form.nbytes])

    def finish_value(self, entry: Laid, part: Part, digest: str) -> None:
        """Fill in what depends on the place of a value, and on its bytes.

        This runs for every value: it reads no attribute twice and calls little.
        """
        _, _, place, total, call, form, number, order, _, _ = entry
        address, prefix, octets = part.end, form.prefix_nbytes, digest.encode()
        self.fill_in(place, address, form, octets)
        part.end = address + total
        part.add_value(
            call, form, number, order, address, address + prefix if form.nbytes else 0, octets
        )

    def link_record(self, entry: Laid, address: int, to: tuple[int, int]) -> bytearray:
        """The record of a link to part and row `to`, in place of the value that the ring holds."""
        _, part, place, _, call, _, number, order, *_ = entry
        record = bytearray(schema.text_prefix(b"[%d,%d]" % to))
        sequence = schema.SEQUENCE.unpack_from(self._room, place + schema.SEQUENCE_AT)[0]
        numbers = (call, number, part.num_rows, order)
        schema.write_fields(record, schema.LINK, part.nonce, sequence, address, 0, numbers)
        return record

    def receive(self, wait: Callable[[], None], place: int) -> None:
        """Wait until the bytes of the record at `place` are there, and say so in the ring."""
        wait()
        self._room[place : place + 4] = MAGIC

    def fill_in(self, place: int, address: int, form: Template, digest: bytes) -> None:
        """Fill in what depends on the place in the file, and on the bytes, behind the fields."""
        room, fields = self._room, place + PREFIX_HEADER
        offset = address + form.prefix_nbytes if form.nbytes else UNDEFINED
        form.header.pack_into(room, fields, form.before_address, offset, form.before_digest, digest)
        _PACK_ADDRESS(room, place + ADDRESS_AT, address)
        _PACK_CRC(room, place + CRC_AT, crc32(room[place + 8 : fields]))
