"""What all values of one slot, type and shape share: their bytes in a part, made once."""

from __future__ import annotations

from functools import cached_property
from struct import Struct
from typing import Any

from dumpcmp.archive import encoder
from dumpcmp.archive.encoder import padded
from dumpcmp.archive.escaping import link_name
from dumpcmp.archive.journal import json_text, text_prefix
from dumpcmp.archive.schema import ALIGNMENT, FORM_FIELDS, MAX_RANK, PREFIX_HEADER
from dumpcmp.nouns.dtypes import DTYPES
from dumpcmp.nouns.record import Kept, Record

_DIGEST = "0" * 32
_FULL = Kept.FULL

# A Record's form as a dictionary's key: everything but key, order, rank and link.
FormKey = tuple[Any, ...]


def form_key(record: Record) -> FormKey:
    """What decides the form of `record`. Full is True here: an enum hashes slowly."""
    kept = record.kept
    return (
        record.key.slot,
        record.dtype,
        record.shape,
        record.stride,
        record.storage_offset,
        record.device,
        record.layout,
        kept is _FULL or kept,
        record.problem,
        record.seen_in,
        record.stored,
    )


def trouble_with(record: Record) -> str:
    """Why `record` cannot be stored as it is, or the empty string."""
    dtype = record.stored.dtype if record.stored else record.dtype
    shape = record.stored.shape if record.stored else record.shape
    if dtype not in DTYPES:
        return f"elements of type {dtype} cannot be stored"
    if len(shape) > MAX_RANK:
        return f"{len(shape)} dims are more than the {MAX_RANK} that HDF5 has"
    return ""


class Form:
    """The templates for one form: the dataset's prefix and the link to it."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.slot = link_name(record.key.slot)
        stored = record.stored
        self.dtype = stored.dtype if stored else record.dtype
        self.shape = stored.shape if stored else record.shape
        self.nbytes = self._count_bytes() if record.kept is not Kept.NOTHING else 0
        header = self._header(record)
        self.prefix = bytes(PREFIX_HEADER) + header.ljust(padded(len(header), ALIGNMENT), b"\0")
        self.prefix_nbytes = len(self.prefix)
        self.blocks = self.prefix_nbytes // ALIGNMENT
        self._make_patch(header)
        self.total = len(self.prefix) + padded(self.nbytes, ALIGNMENT)
        self._make_link()

    def _count_bytes(self) -> int:
        numel = 1
        for size in self.shape:
            numel *= size
        return numel * DTYPES[self.dtype].nbytes

    def _header(self, record: Record) -> bytes:
        told = list(self._attributes(record))
        messages = b"".join(encoder.attribute(name, value) for name, value in told)
        whole = record.kept is not Kept.NOTHING
        kind = encoder.datatype(self.dtype if self.dtype in DTYPES else "uint8")
        shape = self.shape if whole else None
        return encoder.dataset_header(kind, shape, 0, self.nbytes, messages, len(told))

    def _attributes(self, record: Record) -> list[tuple[str, Any]]:
        """The dataset's attributes; the digest comes last, where the writer finds it."""
        told: list[tuple[str, Any]] = [("dtype", record.dtype)]
        if record.stored or record.kept is Kept.NOTHING:
            told.append(("shape", tuple(record.shape)))
        told.append(("stride", tuple(record.stride)))
        if record.storage_offset:
            told.append(("storage_offset", record.storage_offset))
        named = ("device", "layout", "problem", "seen_in")
        told += [(name, value) for name in named if (value := getattr(record, name))]
        told.append(("kept", str(record.kept)))
        told += record.stored.attributes if record.stored else ()
        return [*told, ("digest", _DIGEST)]

    def _make_patch(self, header: bytes) -> None:
        """Prepare to write the object header, whose address and digest differ, in one go."""
        at, end = encoder.DATASET_ADDRESS, len(header) - len(_DIGEST)
        rest = len(self.prefix) - PREFIX_HEADER - len(header)
        self.header = Struct(f"<{at}sQ{end - at - 8}s32s{rest}x")
        self.before_address, self.before_digest = header[:at], header[at + 8 : end]

    def write_header(
        self, record: memoryview | bytearray, at: int, address: int, digest: bytes
    ) -> None:
        """Write the object header for bytes at `address` of the part at `at` of `record`."""
        where = address if self.nbytes else encoder.UNDEFINED
        self.header.pack_into(record, at, self.before_address, where, self.before_digest, digest)

    def _make_link(self) -> None:
        message = encoder.hard_link(self.slot, 0, 0)
        order_at, address_at = 11, encoder.address_in_link(self.slot)
        before, between = message[:order_at], message[order_at + 8 : address_at]
        rest = len(message) - address_at - 8
        self.links = Struct(f"<{len(before)}sQ{len(between)}sQ{rest}x")
        self.before_order, self.before_target = before, between

    def link(self, order: int, address: int) -> bytes:
        """The link to a value of this form whose object header is at `address`."""
        return self.links.pack(self.before_order, order, self.before_target, address)

    @cached_property
    def text(self) -> bytes:
        """The prefix of this form's journal record."""
        return text_prefix(self.json)

    @cached_property
    def json(self) -> bytes:
        """The form as the JSON list that the journal and the index hold."""
        return json_text(self._listed())

    def _listed(self) -> list[Any]:
        told = self._record
        stored = told.stored
        instead = stored and [stored.dtype, stored.shape, stored.attributes]
        fields = (getattr(told, name) for name in FORM_FIELDS[1:-1])
        return [told.key.slot, *fields, instead]
