"""Lays a value that comes again into a shared part, and says where it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from xxhash import xxh3_128

from dumpcmp.archive.write import recurring
from dumpcmp.archive.write.finishing import LARGE_NBYTES, Laid
from dumpcmp.archive.write.objects import Template
from dumpcmp.archive.write.part import Owner, Part
from dumpcmp.archive.write.pens import Errand
from dumpcmp.archive.write.recurring import Recurring, SharedPlace
from dumpcmp.nouns.files import read_at
from dumpcmp.nouns.record import Source

PIECE_NBYTES = 1 << 20  # digested and written at once: so much stays in the cache between them

Seal = Callable[[Recurring], None]  # has the shared part sealed that is being written


class Shelved(NamedTuple):
    """Where a value lies that steps share, and how it gets there where it is too large for now."""

    place: SharedPlace
    part: Part | None = None  # that it is laid into, if it was not there
    write: Errand | None = None  # what is still to be done


def shelved(value: Laid, digest: str, room: memoryview, seal: Seal) -> Shelved | None:
    """Where the `value` that `room` holds lies, if steps share it or do so from now on."""
    _, part, at, total, call, form, *_ = value
    shared: Recurring | None = part.recurring
    if shared is None or total <= recurring.LEAST_NBYTES:
        return None
    if place := shared.find(digest, form):
        shared.count(place, is_new=False)
        return Shelved(place)
    if not shared.is_due(digest, form, part.facts["step"]):
        return None
    holder, owner, path = _declared(shared, part, call, form, seal)
    start, write = at + form.prefix_nbytes, None
    if total > LARGE_NBYTES:
        address, prefix = holder.reserve_value(owner, digest)
        write = partial(put_value, holder, address, prefix, room[start : at + total])
    else:
        holder.append_value(owner, room[start : start + form.nbytes], digest)
    place = shared.keep(holder, path, form)
    shared.count(place, is_new=True)
    return Shelved(place, holder, write)


def put_value(part: Part, address: int, prefix: bytearray, body: memoryview) -> None:
    """Write a large value; its prefix, which makes it valid, is last."""
    put_body(part, body, address + len(prefix))
    part.write(prefix, address)


def put_body(part: Part, body: memoryview, address: int, digested: int = 0) -> str:
    """Write the bytes of a large value; the digest of the first `digested` of them, if any."""
    digest = xxh3_128() if digested else None
    for at in range(0, len(body), PIECE_NBYTES):
        piece = body[at : at + PIECE_NBYTES]
        if digest is not None:
            digest.update(piece[: digested - at])  # without what fills the record up
        part.write(piece, address + at)
    return digest.hexdigest() if digest is not None else ""


def put_straight(part: Part, owner: Owner, source: Source, seal: Seal) -> Part | None:
    """Write a value that is too large for the ring; the shared part that it was laid into, if any.

    It is copied into its step's part, and given up there if it came before.
    """
    call, form, _, _ = owner
    shared: Recurring | None = part.recurring
    digest = part.fill_large(form, source)
    place, holder = None, None
    if shared is not None:
        place, is_new = shared.find(digest.decode(), form), False
        if place is None and shared.is_due(digest.decode(), form, part.facts["step"]):
            holder, theirs, path = _declared(shared, part, call, form, seal)
            _copy(part, holder, theirs, digest)
            place, is_new = shared.keep(holder, path, form), True
        if place is not None:
            shared.count(place, is_new=is_new)
    if place is None:
        part.keep_large(owner, digest)
    else:
        part.drop_large()
        part.append_link(owner, place.part, place.row, place.told, place.path)
    return holder


def _declared(
    shared: Recurring, part: Part, call: int, form: Template, seal: Seal
) -> tuple[Part, Owner, str]:
    if shared.is_full:
        seal(shared)
    told = part.told[call]
    return shared.declare(told[0].op if told else "", form)


def _copy(source: Part, holder: Part, owner: Owner, digest: bytes) -> None:
    """Copy what lies behind the end of one part, as large as its form says, into another."""
    form, start = owner[1], source.end + owner[1].prefix_nbytes
    address, prefix = holder.reserve_value(owner, digest.decode())
    for at in range(0, form.nbytes, PIECE_NBYTES):
        piece = read_at(source.descriptor, min(PIECE_NBYTES, form.nbytes - at), start + at)
        holder.write(piece, address + len(prefix) + at)
    os.ftruncate(holder.descriptor, holder.end)  # filled up to 64 bytes
    holder.write(prefix, address)
