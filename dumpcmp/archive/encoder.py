"""HDF5's bytes: superblock 0, version-1 object headers, compact groups, contiguous datasets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

import numpy as np

from dumpcmp.nouns.value import DTYPES

UNDEFINED = 0xFFFF_FFFF_FFFF_FFFF
SIGNATURE = b"\x89HDF\r\n\x1a\n"

DATASPACE, LINK_INFO, DATATYPE, FILL_VALUE, LINK, LAYOUT, GROUP_INFO, FILTERS, ATTRIBUTE = (
    0x1, 0x2, 0x3, 0x5, 0x6, 0x8, 0xA, 0xB, 0xC,
)  # fmt: skip

SUPERBLOCK = Struct("<8s8B2HI4Q2Q2I16s")
DENSE_SUPERBLOCK = Struct("<8s8B2HI2H4Q2Q2I16s")  # version 1, which tells how small B-trees are
CHUNKED_FIELDS = Struct("<BBBQII")
CHUNK_NODE = Struct("<4sBBHQQ IIQQ Q IIQQ 32x".replace(" ", ""))  # a B-tree of one chunk
OBJECT_HEADER = Struct("<BxHIIxxxx")
MESSAGE = Struct("<HHBxxx")
ADDRESS = Struct("<Q")
_INTEGER = Struct("<q")
_DOUBLE = Struct("<d")
_TEXT_TYPE = Struct("<B3BI")
_SCALAR = bytes((1, 0, 0, 0, 0, 0, 0, 0))
LAYOUT_FIELDS = Struct("<BBQQ")
_ATTRIBUTE = Struct("<BxHHH")
_LINK = Struct("<BBBQB")
_MEMBER = Struct("<IB3xI4x4I")

# name -> size, sign bit, exponent bit and width, mantissa width, exponent bias
_FLOATS = {
    "float64": (8, 63, 52, 11, 52, 1023),
    "float32": (4, 31, 23, 8, 23, 127),
    "float16": (2, 15, 10, 5, 10, 15),
    "bfloat16": (2, 15, 7, 8, 7, 127),
    "float8_e4m3fn": (1, 7, 3, 4, 3, 7),
    "float8_e5m2": (1, 7, 2, 5, 2, 15),
}


def padded(nbytes: int, unit: int = 8) -> int:
    """`nbytes` rounded up to a multiple of `unit`, a power of two."""
    return (nbytes + unit - 1) & -unit


def _filled(body: bytes) -> bytes:
    return body.ljust(len(body) + 7 & -8, b"\0")


def superblock(root: int, end: int) -> bytes:
    """The first 96 bytes: where the root group's header is, and where the file ends."""
    return SUPERBLOCK.pack(
        SIGNATURE, 0, 0, 0, 0, 0, 8, 8, 0, 4, 16, 0,
        0, UNDEFINED, end, UNDEFINED, 0, root, 0, 0, b"",
    )  # fmt: skip


def dense_superblock(root: int, end: int) -> bytes:
    """The same of a part that was laid out anew: a B-tree of chunks has room for two of them."""
    return DENSE_SUPERBLOCK.pack(
        SIGNATURE, 1, 0, 0, 0, 0, 8, 8, 0, 4, 16, 0, 1, 0,
        0, UNDEFINED, end, UNDEFINED, 0, root, 0, 0, b"",
    )  # fmt: skip


def message(kind: int, body: bytes) -> bytes:
    """One message of an object header, filled to a multiple of eight bytes."""
    nbytes = len(body) + 7 & -8
    return MESSAGE.pack(kind, nbytes, 0) + body.ljust(nbytes, b"\0")


def _integer(size: int, signed: bool) -> bytes:
    return Struct("<B3BIHH").pack(0x10, 8 * signed, 0, 0, size, 0, 8 * size)


def _float(size: int, sign: int, exponent: int, width: int, mantissa: int, bias: int) -> bytes:
    fields = Struct("<B3BIHH4BI")
    return fields.pack(
        0x11, 0x20, sign, 0, size, 0, 8 * size, exponent, width, 0, mantissa, bias
    )  # fmt: skip


def text_type(nbytes: int) -> bytes:
    """Fixed-length text: UTF-8, padded with NUL."""
    return _TEXT_TYPE.pack(0x13, 0x11, 0, 0, nbytes)


def numpy_datatype(dtype: np.dtype[Any]) -> bytes:
    """The Datatype message of a numpy type: numbers, bytes, or a compound of them."""
    size = dtype.itemsize
    match dtype.kind:
        case "V":
            members = (dtype.fields or {}).items()
            body = Struct("<BHBI").pack(0x16, len(members), 0, size)
            for name, (kind, at, *_) in members:
                place = _MEMBER.pack(at, 0, 0, 0, 0, 0, 0)
                body += _filled(name.encode() + b"\0") + place + numpy_datatype(kind)
            return body
        case "c":
            half = f"<f{size // 2}"
            return numpy_datatype(np.dtype([("r", half), ("i", half)]))
        case "b":
            names = _filled(b"FALSE\0") + _filled(b"TRUE\0")
            return Struct("<BHBI").pack(0x18, 2, 0, 1) + _integer(1, signed=True) + names + b"\0\1"
        case "i" | "u":
            return _integer(size, signed=dtype.kind == "i")
        case "f":
            return _float(*_FLOATS[dtype.name])
        case "S":
            return text_type(size)
    raise TypeError(f"no HDF5 type for numpy's {dtype}")


@lru_cache
def datatype(name: str) -> bytes:
    """The body of the Datatype message for the element type that torch calls `name`."""
    if name in _FLOATS:
        return _float(*_FLOATS[name])
    return numpy_datatype(np.dtype(DTYPES[name].storage))


def dataspace(shape: Sequence[int] | None) -> bytes:
    """The body of a Dataspace message; `shape` None means that there are no elements at all."""
    if shape == ():
        return _SCALAR
    if shape is None:
        return bytes((2, 0, 0, 2))
    return bytes((1, len(shape), 0, 0, 0, 0, 0, 0)) + Struct(f"<{len(shape)}Q").pack(*shape)


@lru_cache(maxsize=1024)
def _title(name: str, kind: bytes, space: bytes, nbytes: int) -> bytes:
    """What stands before an attribute's value of `nbytes`."""
    title = name.encode() + b"\0"
    fields = _ATTRIBUTE.pack(1, len(title), len(kind), len(space))
    body = b"".join((fields, _filled(title), _filled(kind), space))
    return MESSAGE.pack(ATTRIBUTE, len(body) + padded(nbytes), 0) + body


def attribute(name: str, value: str | int | float | Sequence[int]) -> bytes:
    """An Attribute message: UTF-8 text, a number, or a vector of integers."""
    kind, space = _INT64, _SCALAR
    if isinstance(value, str):
        content = value.encode("utf-8", "surrogatepass") or b"\0"
        kind = text_type(len(content))
    elif isinstance(value, int):
        content = _INTEGER.pack(value)
    elif isinstance(value, float):
        kind, content = datatype("float64"), _DOUBLE.pack(value)
    else:
        space, content = dataspace((len(value),)), Struct(f"<{len(value)}q").pack(*value)
    nbytes = len(content)
    return _title(name, kind, space, nbytes) + content.ljust(nbytes + 7 & -8, b"\0")


_INT64 = datatype("int64")
_FILL_VALUE = message(FILL_VALUE, bytes((2, 1, 1, 0)))  # allocated early, never filled


def dataset_header(
    kind: bytes, shape: Sequence[int] | None, address: int, nbytes: int, attributes: bytes, n: int,
    *, filled: bool = True,
) -> bytes:  # fmt: skip
    """A dataset's object header, the Layout message first, then its `n` attributes' messages.

    `attributes` are messages too, so a writer can keep the header as a template and patch the
    address (at `DATASET_ADDRESS`) and the last attribute's text in place. One that need not be
    `filled` says nothing of a fill value.
    """
    layout = message(LAYOUT, LAYOUT_FIELDS.pack(3, 1, address if nbytes else UNDEFINED, nbytes))
    described = message(DATATYPE, kind) + message(DATASPACE, dataspace(shape))
    messages = layout + described + (_FILL_VALUE if filled else b"") + attributes
    return OBJECT_HEADER.pack(1, n + 3 + filled, 1, len(messages)) + messages


DATASET_ADDRESS = OBJECT_HEADER.size + MESSAGE.size + 2
LINK_COUNT_AT = 4  # of the number of hard links, in an object header


def _link(name: str, order: int, kind: int) -> bytes:
    """A Link message's body, up to what it leads to."""
    encoded = name.encode()
    wide = len(encoded) > 255
    fields = _LINK.pack(1, 0b11100 | wide, kind, order, not name.isascii())
    return fields + len(encoded).to_bytes(1 + wide, "little") + encoded


@lru_cache(maxsize=16_384)
def link_form(name: str) -> tuple[Struct, bytes, bytes, int]:
    """How `hard_link` is packed for `name`, and where the address then lies in the message."""
    body = _link(name, 0, 0)
    whole, order_at, end = (
        message(LINK, body + bytes(8)),
        MESSAGE.size + 3,
        MESSAGE.size + len(body),
    )
    before, between = whole[:order_at], whole[order_at + 8 : end]
    form = Struct(f"<{order_at}sQ{len(between)}sQ{len(whole) - end - 8}x")
    return form, before, between, end


def hard_link(name: str, order: int, address: int) -> bytes:
    """A Link message: `name` is the object whose header is at `address`."""
    form, before, between, _ = link_form(name)
    return form.pack(before, order, between, address)


def external_link(name: str, order: int, file: str, path: str) -> bytes:
    """A Link message: `name` is what `file`, beside this one, has at `path`."""
    target = b"\0" + file.encode() + b"\0" + path.encode() + b"\0"
    return message(LINK, _link(name, order, 64) + len(target).to_bytes(2, "little") + target)


_GROUP = Struct("<BxHIIxxxx HHBxxx BBQQQ6x HHBxxx BBHHxx".replace(" ", ""))
_GROUP_MESSAGES_NBYTES = _GROUP.size - OBJECT_HEADER.size


def group_header(links: bytes | bytearray, num_links: int, attributes: bytes, n: int) -> bytes:
    """A group's object header: its links in compact form, then its `n` attributes' messages."""
    nbytes = _GROUP_MESSAGES_NBYTES + len(links) + len(attributes)
    return b"".join((
        _GROUP.pack(
            1, 2 + num_links + n, 1, nbytes,
            LINK_INFO, 32, 0, 0, 1, num_links, UNDEFINED, UNDEFINED,
            GROUP_INFO, 8, 0, 0, 1, 0xFFFF, 0,
        ),
        links,
        attributes,
    ))  # fmt: skip


def dataset(kind: bytes, shape: Sequence[int], content: bytes | bytearray, start: int) -> bytes:
    """A whole dataset to lie at `start`: its header, then `content`, filled to eight bytes."""
    nbytes = len(dataset_header(kind, shape, 0, len(content), b"", 0))
    header = dataset_header(kind, shape, start + nbytes, len(content), b"", 0)
    return header + _filled(bytes(content))


_DEFLATE = b"\1\1" + bytes(6) + Struct("<4H8s2I").pack(1, 8, 0, 1, b"deflate", 1, 0)


def deflated(kind: bytes, count: int, nbytes: int, packed: bytes, start: int) -> bytes:
    """A dataset of `count` elements to lie at `start`: `nbytes` in one chunk, which zlib packed."""

    def header(node: int) -> bytes:
        layout = CHUNKED_FIELDS.pack(3, 2, 2, node, count, nbytes // count)
        messages = b"".join((
            message(LAYOUT, layout), message(DATATYPE, kind),
            message(DATASPACE, dataspace((count,))), message(FILTERS, _DEFLATE),
        ))  # fmt: skip
        return OBJECT_HEADER.pack(1, 4, 1, len(messages)) + messages

    node_at = start + len(header(0))
    node = CHUNK_NODE.pack(
        b"TREE", 1, 0, 1, UNDEFINED, UNDEFINED, len(packed), 0, 0, 0, node_at + CHUNK_NODE.size,
        0, 0, count, 0,
    )  # fmt: skip
    return header(node_at) + node + _filled(packed)


def bare_group(links: bytes, num_links: int) -> bytes:
    """A group's object header with nothing but its links, whose order is not tracked."""
    info = message(LINK_INFO, Struct("<BBQQ").pack(0, 0, UNDEFINED, UNDEFINED))
    return OBJECT_HEADER.pack(1, 1 + num_links, 1, len(info) + len(links)) + info + links


@lru_cache(maxsize=16_384)
def bare_link(name: str) -> tuple[bytes, int]:
    """A hard link to nowhere yet, without its order; and where its address belongs in it."""
    encoded = name.encode()
    wide = len(encoded) > 255
    flags = wide | (0 if name.isascii() else 0b10000)
    charset = b"" if name.isascii() else b"\1"
    body = bytes((1, flags)) + charset + len(encoded).to_bytes(1 + wide, "little") + encoded
    return message(LINK, body + bytes(8)), MESSAGE.size + len(body)


def text_dataset(text: str, start: int) -> bytes:
    """A scalar dataset that holds `text`, to lie at `start`."""
    content = text.encode("utf-8", "surrogatepass") or b"\0"
    return dataset(text_type(len(content)), (), content, start)
