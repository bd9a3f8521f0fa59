"""The groups of a part while it grows, and what the group of a call says of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quoted
from struct import Struct
from typing import Any

from dumpcmp.archive import encoder
from dumpcmp.archive.schema import MAX_ATTRIBUTE
from dumpcmp.nouns.record import Call

MAX_CACHED = 1000  # characters of arguments that may come again
_ADDRESS = Struct("<Q")


@lru_cache(maxsize=4096)
def _repeated_json(
    target: str, source: str, phase: str, arguments: str, origins: tuple[str, ...], kernel: str
) -> str:
    return json.dumps([target, source, phase, arguments, origins, kernel], separators=(",", ":"))


def call_json(call: Call) -> bytes:
    """`call` as the JSON list that the journal and the index hold: schema.CALL_FIELDS."""
    make = _repeated_json if len(call.arguments) <= MAX_CACHED else _repeated_json.__wrapped__
    rest = make(call.target, call.source, call.phase, call.arguments, call.origins, call.kernel)
    return f"[{_quoted(call.op)},{call.call},{call.order},{rest[1:]}".encode()


@lru_cache(maxsize=4096)
def repeated_attributes(
    call: int, target: str, source: str, phase: str, arguments: str, kernel: str
) -> tuple[bytes, int]:
    """The attributes that many calls share, as messages, and how many they are."""
    named: dict[str, str | int] = {"call": call, "phase": phase, "target": target, "source": source}
    named |= {"arguments": arguments, "kernel": kernel}
    told = [(name, value) for name, value in named.items() if value != ""]
    return b"".join(encoder.attribute(name, value) for name, value in told), len(told)


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
        shared, count = repeated_attributes(
            call.call, call.target, call.source, call.phase, "" if long else call.arguments,
            call.kernel,
        )  # fmt: skip
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
        """Take one more link message."""
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
            _ADDRESS.pack_into(self.parent.links, self.address_at, address)

    def header(self) -> bytes:
        """The group's object header as it is now."""
        num_links = self.num_links + bool(self.foremost)
        links = self.foremost + self.links
        return encoder.group_header(links, num_links, self.attributes, self.num_attributes)
