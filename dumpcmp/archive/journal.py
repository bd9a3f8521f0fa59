"""The journal inside a part: each record begins with a prefix that a scan can find and trust."""

from __future__ import annotations

import json
from struct import Struct
from typing import Any
from zlib import crc32

from dumpcmp.archive.schema import (
    ALIGNMENT,
    JOURNAL_FORMAT,
    KINDS,
    MAGIC,
    PREFIX_HEADER,
    WAITING,
)

PART, CALL, FORM, VALUE, LINK, COMMIT, INDEX, WRAP = (
    KINDS[name].number
    for name in ("part", "call", "form", "value", "link", "commit", "index", "wrap")
)

HEADER = Struct(JOURNAL_FORMAT)
SEQUENCE = Struct("<Q")
SEQUENCE_AT = 16
ADDRESS = Struct("<Q")
ADDRESS_AT = 24
CRC = Struct("<I")
CRC_AT = 4

assert HEADER.size == PREFIX_HEADER

_NO_FIELDS = bytes(PREFIX_HEADER)
TEXTS = frozenset((PART, CALL, FORM, LINK))  # kinds whose prefix holds JSON

_dump = json.JSONEncoder(separators=(",", ":")).encode


def text_prefix(text: bytes) -> bytes:
    """A prefix that holds `text`, filled up with spaces, its fields still zero."""
    return _NO_FIELDS + text.ljust(len(text) + ALIGNMENT - 1 & -ALIGNMENT)


def json_text(value: Any) -> bytes:
    """`value` as the JSON that a journal holds."""
    return _dump(value).encode()


def checksum(prefix: memoryview | bytes | bytearray, kind: int) -> int:
    """The CRC-32 of a prefix: of its fields, and of its text where it holds text."""
    return crc32(prefix[8:] if kind in TEXTS else prefix[8:PREFIX_HEADER])


def seal_prefix(prefix: memoryview | bytearray, kind: int, address: int) -> None:
    """Write into `prefix` where it lies in the part, and its CRC."""
    ADDRESS.pack_into(prefix, ADDRESS_AT, address)
    CRC.pack_into(prefix, CRC_AT, checksum(prefix, kind))


def header_for(
    kind: int,
    nonce: int,
    nbytes: int,
    prefix_nbytes: int,
    *,
    sequence: int = 0,
    address: int = 0,
    call: int = 0,
    form: int = 0,
    row: int = 0,
    order: int = 0,
    waiting: bool = False,
) -> bytes:
    """The 64 bytes of fields, CRC still zero."""
    magic = WAITING if waiting else MAGIC
    blocks = prefix_nbytes // ALIGNMENT
    return HEADER.pack(
        magic, 0, nonce, sequence, address, nbytes, kind, blocks, call, form, row, order
    )
