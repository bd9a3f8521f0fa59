"""The journal inside a part: each record begins with a prefix that a scan can find and trust.

Here too: calls and forms as the JSON lists that the journal and the index hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from struct import Struct
from typing import Any, get_type_hints
from zlib import crc32

from dumpcmp.archive.schema import (
    ALIGNMENT,
    CALL_FIELDS,
    FORM_FIELDS,
    JOURNAL_FORMAT,
    KINDS,
    MAGIC,
    PREFIX_HEADER,
    Form,
)
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call, Kept, Phase, Stored

PART, CALL, FORM, VALUE, LINK, COMMIT, INDEX, WRAP = (number for number, _, _ in KINDS)

HEADER = Struct(JOURNAL_FORMAT)
SEQUENCE = ADDRESS = Struct("<Q")
SEQUENCE_AT = 16
ADDRESS_AT = 24
CRC = Struct("<I")
CRC_AT = 4
MAX_CACHED = 1000  # characters of arguments that may come again

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


def write_fields(
    prefix: memoryview | bytearray, kind: int, nonce: int, sequence: int, address: int,
    nbytes: int, numbers: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> None:  # fmt: skip
    """Fill in the fields of a record at `address`; `numbers` are its call, form, row and order."""
    blocks = len(prefix) // ALIGNMENT
    HEADER.pack_into(prefix, 0, MAGIC, 0, nonce, sequence, address, nbytes, kind, blocks, *numbers)
    CRC.pack_into(prefix, CRC_AT, checksum(prefix, kind))


_REPEATED = attrgetter(*CALL_FIELDS[3:])  # what many calls have in common


@lru_cache(maxsize=4096)
def _repeated_json(*values: Any) -> str:
    return _dump(values)[1:]


def call_json(call: Call) -> bytes:
    """`call` as the JSON list of CALL_FIELDS."""
    make = _repeated_json if len(call.arguments) <= MAX_CACHED else _repeated_json.__wrapped__
    return f"[{_dump(call.op)},{call.call},{call.order},{make(*_REPEATED(call))}".encode()


LOST_CALL = Call("", 0, Op(""), 0, 0)  # in the place of a call that was lost


def form_json(form: Form) -> bytes:
    """`form` as the JSON list of FORM_FIELDS."""
    stored = form.stored and (form.stored.dtype, form.stored.shape, form.stored.attributes)
    return json_text([form.slot, *(form.facts | {"stored": stored}).values()])


def _instance(kind: type) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} is no {kind}")
        return value

    return checked


def checked_sizes(sizes: Any) -> tuple[int, ...]:
    """`sizes` as a shape or stride; ValueError where they are none."""
    if len(sizes) > 1024 or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(f"{sizes} is no shape")
    return tuple(sizes)


def _stored(listed: Any) -> Stored | None:
    if listed is None:
        return None
    dtype, shape, attributes = listed
    pairs = tuple((str(name), value) for name, value in attributes)
    return Stored(_READERS[str](dtype), checked_sizes(shape), pairs)


# How a field of this type is read back from JSON, with suspicion.
_READERS: dict[Any, Callable[[Any], Any]] = {
    str: _instance(str),
    Op: lambda text: Op(_instance(str)(text)),
    int: _instance(int),
    Kept: Kept,
    Phase: lambda text: Phase(text) if text in tuple(Phase) else Phase.FORWARD,
    tuple[int, ...]: checked_sizes,
    tuple[str, ...]: lambda texts: tuple(map(str, _instance(list)(texts))),
    Stored | None: _stored,
}
_CALL_READERS = [_READERS[get_type_hints(Call)[name]] for name in CALL_FIELDS]
_FORM_READERS = [_READERS[get_type_hints(Form)[name]] for name in FORM_FIELDS]


def _fields(listed: Any, readers: list[Callable[[Any], Any]]) -> list[Any]:
    return [read(value) for read, value in zip(readers, _instance(list)(listed), strict=True)]


def read_call(listed: Any, model: str, step: int) -> Call:
    """The Call that `call_json` listed; TypeError or ValueError where it is none."""
    return Call(model, step, *_fields(listed, _CALL_READERS))


def read_form(listed: Any) -> Form:
    """The Form that `form_json` listed; TypeError or ValueError where it is none."""
    return Form(*_fields(listed, _FORM_READERS))
