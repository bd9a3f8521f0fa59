"""The groups of a part while it grows, and what the group of a call says of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from dumpcmp.archive import encoder
from dumpcmp.archive.journal import MAX_CACHED
from dumpcmp.archive.schema import CALL_FIELDS, MAX_ATTRIBUTE
from dumpcmp.nouns.record import Call

# Attributes that many calls share, in the order in which they are written.
_SHARED = ("call", "phase", *(n for n in CALL_FIELDS[3:] if n not in ("phase", "origins")))
_shared_of = attrgetter(*_SHARED)


@lru_cache(maxsize=4096)
def _shared_attributes(*values: str | int) -> tuple[bytes, int]:
    """The attributes that many calls share, as messages, and how many they are."""
    told = [each for each in zip(_SHARED, values, strict=True) if each[1] != ""]
    return b"".join(encoder.attribute(*each) for each in told), len(told)


class Group:
    """A group that grows: its links as messages, and where its parent's link to it is."""

    __slots__ = (
        "address_at", "attributes", "depth", "foremost", "links", "long_texts", "num_attributes",
        "num_links", "parent",
    )  # fmt: skip

    def __init__(self, parent: Group | None) -> None:
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else 0
        self.links = bytearray()
        self.num_links = 0
        self.foremost = b""  # a link to be found before all others
        self.address_at = 0  # of this group's own address, in the parent's links
        self.attributes = b""
        self.num_attributes = 0
        self.long_texts: list[tuple[str, str]] | None = None

    def describe(self, attributes: Sequence[tuple[str, Any]]) -> None:
        """Set the attributes; a text too long for one becomes a dataset of its own."""
        for name, value in attributes:
            if isinstance(value, str) and len(value) > MAX_ATTRIBUTE:
                self.long_texts = [*(self.long_texts or ()), (f"_{name}", value)]
                continue
            self.attributes += encoder.attribute(name, value)
            self.num_attributes += 1

    def describe_call(self, call: Call) -> None:
        """Set the attributes of the group of `call`; empty ones are left out."""
        long = len(call.arguments) > MAX_CACHED
        shared, count = _shared_attributes(
            *_shared_of(replace(call, arguments="") if long else call)
        )
        self.attributes = shared + encoder.integer_attribute("order", call.order)
        self.num_attributes = count + 1
        if len(call.op) <= MAX_ATTRIBUTE:
            self.attributes += encoder.text_attribute("op", call.op)
            self.num_attributes += 1
        else:
            self.describe([("op", call.op)])
        if long:
            self.describe([("arguments", call.arguments)])
        if call.origins:
            self.describe([("origins", json.dumps(call.origins))])

    def add(self, link: bytes) -> None:
        self.links += link
        self.num_links += 1

    def add_group(self, name: str, child: Group) -> None:
        """Take `child` as `name`; its address is patched in at each commit."""
        link, at = encoder.group_link(name, self.num_links)
        child.address_at = len(self.links) + at
        self.links += link
        self.num_links += 1

    def moved(self, address: int) -> None:
        """Tell the parent that this group's header is now at `address`."""
        if self.parent is not None:
            encoder.ADDRESS.pack_into(self.parent.links, self.address_at, address)

    def header(self) -> bytes:
        num_links = self.num_links + bool(self.foremost)
        links = self.foremost + self.links
        return encoder.group_header(links, num_links, self.attributes, self.num_attributes)
