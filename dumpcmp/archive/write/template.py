"""The bytes of a form, made once for all of its values: the dataset's prefix, the link to it."""

from __future__ import annotations

import math
from functools import cached_property
from struct import Struct
from typing import Any

from dumpcmp.archive import encoder
from dumpcmp.archive.encoder import padded
from dumpcmp.archive.escaping import link_name
from dumpcmp.archive.journal import form_json, text_prefix
from dumpcmp.archive.schema import ALIGNMENT, DATASET_ATTRS, MAX_RANK, PREFIX_HEADER, Form
from dumpcmp.nouns.record import Kept
from dumpcmp.nouns.value import DTYPES

_DIGEST = "0" * 32
_ALWAYS = ("dtype", "stride")  # attributes that are there even where they are empty
_LINK_ORDER_AT = 11  # of the position among the group's links, in a link's message


def trouble_with(form: Form) -> str:
    """Why a value of `form` cannot be stored as it is, or the empty string."""
    dtype, shape = form.held
    if dtype not in DTYPES:
        return f"elements of type {dtype} cannot be stored"
    if len(shape) > MAX_RANK:
        return f"{len(shape)} dims are more than the {MAX_RANK} that HDF5 has"
    return ""


def _attributes(form: Form) -> list[tuple[str, Any]]:
    """The dataset's attributes; the digest comes last, where the writer finds it."""
    differs = form.stored is not None or form.kept is Kept.NOTHING  # from the dataset's own shape
    told = [
        (name, value)
        for name, value in form.facts.items()
        if name in DATASET_ATTRS and name != "kept"
        if (differs if name == "shape" else value or name in _ALWAYS)
    ]
    beside = form.stored.attributes if form.stored else ()
    return [*told, ("kept", str(form.kept)), *beside, ("digest", _DIGEST)]


class Template:
    """The templates for one form: the dataset's prefix and the link to it."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.slot = link_name(form.slot)
        self.nbytes = 0
        dtype, shape = form.held
        whole = form.kept is not Kept.NOTHING
        if whole:
            self.nbytes = math.prod(shape) * DTYPES[dtype].nbytes
        told = _attributes(form)
        header = encoder.dataset_header(
            encoder.datatype(dtype if dtype in DTYPES else "uint8"), shape if whole else None, 0,
            self.nbytes, b"".join(encoder.attribute(*each) for each in told), len(told),
        )  # fmt: skip
        self.prefix = bytes(PREFIX_HEADER) + header.ljust(padded(len(header), ALIGNMENT), b"\0")
        self.prefix_nbytes = len(self.prefix)
        self.blocks = self.prefix_nbytes // ALIGNMENT
        self.total = self.prefix_nbytes + padded(self.nbytes, ALIGNMENT)
        self._make_patch(header)
        self._make_link()

    def _make_patch(self, header: bytes) -> None:
        """Prepare to write the object header, whose address and digest differ, in one go."""
        at, end = encoder.DATASET_ADDRESS, len(header) - len(_DIGEST)
        rest = len(self.prefix) - PREFIX_HEADER - len(header)
        self.header = Struct(f"<{at}sQ{end - at - 8}s32s{rest}x")
        self.before_address, self.before_digest = header[:at], header[at + 8 : end]

    def write_header(self, record: memoryview | bytearray, address: int, digest: bytes) -> None:
        """Write the object header, for bytes at `address` of the part, behind a record's fields."""
        where = address if self.nbytes else encoder.UNDEFINED
        self.header.pack_into(
            record, PREFIX_HEADER, self.before_address, where, self.before_digest, digest
        )

    def _make_link(self) -> None:
        message = encoder.hard_link(self.slot, 0, 0)
        order_at, address_at = _LINK_ORDER_AT, encoder.address_in_link(self.slot)
        before, between = message[:order_at], message[order_at + 8 : address_at]
        rest = len(message) - address_at - 8
        self.links = Struct(f"<{len(before)}sQ{len(between)}sQ{rest}x")
        self.before_order, self.before_target = before, between

    @cached_property
    def json(self) -> bytes:
        """The form as the JSON list that the journal and the index hold."""
        return form_json(self.form)

    @cached_property
    def text(self) -> bytes:
        """The prefix of the form's journal record."""
        return text_prefix(self.json)
