"""The objects of a part as bytes: groups that grow, and what all datasets of a form share."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Any

from dumpcmp.archive import encoder, schema
from dumpcmp.archive.encoder import padded
from dumpcmp.archive.paths import group_path, link_name
from dumpcmp.archive.schema import (
    ALIGNMENT,
    CALL_FIELDS,
    MAX_ATTRIBUTE,
    PREFIX_HEADER,
    Form,
    call_json,
)
from dumpcmp.archive.write.desk import Footprint, Wording
from dumpcmp.nouns.built import built
from dumpcmp.nouns.key import Slot
from dumpcmp.nouns.record import Call, Kept
from dumpcmp.nouns.value import DTYPES

_core: Any = built("dumpcmp.archive.write._finish")

# Attributes that many calls share, in the order in which they are written.
SHARED_FACTS = ("call", "phase", *(n for n in CALL_FIELDS[3:] if n not in ("phase", "origins")))
_shared_of = attrgetter(*SHARED_FACTS)


@lru_cache(maxsize=4096)
def shared_attributes(*values: str | int) -> tuple[bytes, int]:
    """The attributes that many calls share, as messages, and how many they are."""
    told = [each for each in zip(SHARED_FACTS, values, strict=True) if each[1] != ""]
    return b"".join(encoder.attribute(*each) for each in told), len(told)


class CallText(Wording):
    """What a part says of a call, which may come again in the next step, laid out once.

    The program's thread needs its text; what its group is, the thread that writes finds out.
    """

    __slots__ = ()

    def __init__(self, call: Call) -> None:
        self.text, self._path, self._described = call_json(call), (), None

    @property
    def prefix(self) -> bytes:
        """That of its journal record."""
        return schema.text_prefix(self.text)

    def path(self, call: Call) -> tuple[str, ...]:
        """Where in a part the group of `call` is."""
        if not self._path:
            self._path = group_path(call.op, call.call)
        return self._path

    def describe(self, group: Group, call: Call) -> None:
        """Give `group`, which is that of `call`, its attributes."""
        if self._described is None:
            group.describe_call(call)
            self._described = group.attributes, group.num_attributes, group.long_texts
        else:
            group.attributes, group.num_attributes, group.long_texts = self._described


class Branch:
    """What is known of a group that grows; in C where that was built."""

    __slots__ = (
        "address_at", "attributes", "changed", "depth", "foremost", "links", "long_texts",
        "num_attributes", "num_links", "parent",
    )  # fmt: skip

    parent: Group | None
    depth: int
    links: bytearray
    num_links: int
    foremost: bytes  # a link to be found before all others
    address_at: int  # of this group's own address, in the parent's links
    attributes: bytes
    num_attributes: int
    long_texts: tuple[tuple[str, str], ...]
    changed: bool  # since it was laid down


if not TYPE_CHECKING and _core is not None:
    Branch = _core.Branch


class Group(Branch):
    """A group that grows: its links as messages, and where its parent's link to it is."""

    __slots__ = ()

    def __init__(self, parent: Group | None) -> None:
        self.parent = parent
        self.depth = parent.depth + 1 if parent else 0
        self.links = bytearray()
        self.foremost = self.attributes = b""
        self.num_links = self.num_attributes = self.address_at = 0
        self.long_texts = ()
        self.changed = False

    def describe(self, attributes: Sequence[tuple[str, Any]]) -> None:
        """Set the attributes; a text too long for one becomes a dataset of its own."""
        for name, value in attributes:
            if isinstance(value, str) and len(value) > MAX_ATTRIBUTE:
                self.long_texts += ((f"_{name}", value),)
            else:
                self.attributes += encoder.attribute(name, value)
                self.num_attributes += 1

    def describe_call(self, call: Call) -> None:
        """Set the attributes of the group of `call`; empty ones are left out."""
        long = len(call.arguments) > schema.MAX_CACHED
        shared, count = shared_attributes(
            *_shared_of(replace(call, arguments="") if long else call)
        )
        self.attributes, self.num_attributes = shared, count
        told: list[tuple[str, Any]] = [("order", call.order), ("op", call.op)]
        if long:
            told.append(("arguments", call.arguments))
        if call.origins:
            told.append(("origins", json.dumps(call.origins)))
        self.describe(told)

    def add(self, link: bytes) -> None:
        self.links += link
        self.num_links += 1

    def add_group(self, name: str, child: Group) -> None:
        """Take `child` as `name`; its address is patched in at each commit."""
        form, before, between, address_at = encoder.link_form(name)
        child.address_at = len(self.links) + address_at
        self.add(form.pack(before, self.num_links, between, 0))

    def moved(self, address: int) -> None:
        """Tell the parent that this group's header is now at `address`."""
        if self.parent is not None:
            encoder.ADDRESS.pack_into(self.parent.links, self.address_at, address)

    def header(self) -> bytes:
        num_links = self.num_links + bool(self.foremost)
        links = self.foremost + self.links
        return encoder.group_header(links, num_links, self.attributes, self.num_attributes)


_DIGEST = "0" * 32
_ALWAYS = ("dtype", "stride")  # attributes that are there even where they are empty


def trouble_with(form: Form) -> str:
    """Why a value of `form` cannot be stored as it is, or the empty string."""
    dtype, shape = form.held
    if dtype not in DTYPES:
        return f"elements of type {dtype} cannot be stored"
    if len(shape) > schema.MAX_RANK:
        return f"{len(shape)} dims are more than the {schema.MAX_RANK} that HDF5 has"
    return ""


def _bare_header(form: Form) -> bytes:
    """The object header of a dataset whose index tells the rest, its address still missing.

    A plain value has no attributes at all. Of a Summary, of what could not be stored and of a
    shard they stay: they are what its elements mean.
    """
    dtype, shape = form.held
    whole = form.kept is not Kept.NOTHING
    is_plain = whole and form.stored is None and not (form.layout or form.seen_in)
    told = [] if is_plain else _attributes(form)[:-1]
    nbytes = math.prod(shape) * DTYPES[dtype].nbytes if whole else 0
    return encoder.dataset_header(
        encoder.datatype(dtype if dtype in DTYPES else "uint8"), shape if whole else None, 0,
        nbytes, b"".join(encoder.attribute(*each) for each in told), len(told), filled=not is_plain,
    )  # fmt: skip


def _attributes(form: Form) -> list[tuple[str, Any]]:
    """The dataset's attributes; the digest comes last, where the writer finds it."""
    differs = form.stored is not None or form.kept is Kept.NOTHING  # from the dataset's own shape
    told = [
        (name, value)
        for name, value in form.facts.items()
        if name in schema.DATASET_ATTRS and name != "kept"
        if (differs if name == "shape" else value or name in _ALWAYS)
    ]
    beside = form.stored.attributes if form.stored else ()
    return [*told, ("kept", str(form.kept)), *beside, ("digest", _DIGEST)]


def _stamp(*told: Any) -> Any:
    return told if _core is None else _core.Stamp(*told)


class Template(Footprint):
    """The templates for one form: the dataset's prefix and the link to it."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.slot = link_name(form.slot)
        self.is_weight = Slot(form.slot).is_weight
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
        # The object header, whose address and digest differ, is written in one go.
        at, end = encoder.DATASET_ADDRESS, len(header) - len(_DIGEST)
        self.header = Struct(f"<{at}sQ{end - at - 8}s32s{-len(header) % ALIGNMENT}x")
        self.before_address, self.before_digest = header[:at], header[at + 8 : end]
        self.links, self.before_order, self.before_target, target_at = encoder.link_form(self.slot)
        # The same for the way in C: bytes, and where what differs is written into them.
        link = self.links.pack(self.before_order, 0, self.before_target, 0)
        self.stamp = _stamp(
            self.prefix_nbytes, self.nbytes, self.prefix[PREFIX_HEADER:], at, end, link,
            len(self.before_order), target_at, self.is_weight,
        )  # fmt: skip

    def write_header(self, record: memoryview | bytearray, address: int, digest: bytes) -> None:
        """Write the object header, for bytes at `address` of the part, behind a record's fields."""
        where = address if self.nbytes else encoder.UNDEFINED
        self.header.pack_into(
            record, PREFIX_HEADER, self.before_address, where, self.before_digest, digest
        )

    @cached_property
    def bare_header(self) -> bytes:
        """The dataset's object header in a part whose index tells the rest."""
        return _bare_header(self.form)

    @cached_property
    def json(self) -> bytes:
        return schema.form_json(self.form)

    @cached_property
    def text(self) -> bytes:
        return schema.text_prefix(self.json)
