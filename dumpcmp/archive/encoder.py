"""HDF5's bytes: superblock 0, version-1 object headers, compact groups, contiguous datasets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

import numpy as np

from dumpcmp.nouns.value import DTYPES, Kind

UNDEFINED = 0xFFFF_FFFF_FFFF_FFFF
SIGNATURE = b"\x89HDF\r\n\x1a\n"

DATASPACE, LINK_INFO, DATATYPE, FILL_VALUE, LINK, LAYOUT, GROUP_INFO, ATTRIBUTE = (
    0x1, 0x2, 0x3, 0x5, 0x6, 0x8, 0xA, 0xC,
)  # fmt: skip

SUPERBLOCK = Struct("<8s8B2HI4Q2Q2I16s")
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
_SHORT_LINK = Struct("<HHBxxxBBBQBB")
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


def message(kind: int, body: bytes) -> bytes:
    """One message of an object header, filled to a multiple of eight bytes."""
    nbytes = len(body) + 7 & -8
    return MESSAGE.pack(kind, nbytes, 0) + body.ljust(nbytes, b"\0")


def object_header(messages: bytes, count: int) -> bytes:
    """A version-1 object header of `count` messages, with one hard link to it."""
    return OBJECT_HEADER.pack(1, count, 1, len(messages)) + messages


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


def _compound(size: int, members: Sequence[tuple[str, int, bytes]]) -> bytes:
    body = Struct("<BHBI").pack(0x16, len(members), 0, size)
    for name, offset, datatype in members:
        body += _filled(name.encode() + b"\0") + _MEMBER.pack(offset, 0, 0, 0, 0, 0, 0) + datatype
    return body


def _boolean() -> bytes:
    names = _filled(b"FALSE\0") + _filled(b"TRUE\0")
    return Struct("<BHBI").pack(0x18, 2, 0, 1) + _integer(1, signed=True) + names + b"\0\1"


def numpy_datatype(dtype: np.dtype[np.void] | np.dtype[np.generic]) -> bytes:
    """The Datatype message of a numpy type: integers, floats, bytes, or a compound of them."""
    if dtype.fields:
        members = [(name, int(at), numpy_datatype(kind)) for name, (kind, at) in
                   ((n, f[:2]) for n, f in dtype.fields.items())]  # fmt: skip
        return _compound(dtype.itemsize, members)
    match dtype.kind:
        case "i" | "u":
            return _integer(dtype.itemsize, signed=dtype.kind == "i")
        case "f":
            return _float(*_FLOATS[f"float{8 * dtype.itemsize}"])
        case "S":
            return text_type(dtype.itemsize)
    raise TypeError(f"no HDF5 type for numpy's {dtype}")


@lru_cache
def datatype(name: str) -> bytes:
    """The body of the Datatype message for the element type that torch calls `name`."""
    dtype = DTYPES[name]
    if name in _FLOATS:
        return _float(*_FLOATS[name])
    if dtype.kind is Kind.BOOL:
        return _boolean()
    if dtype.kind is Kind.COMPLEX:
        half = datatype("float32" if name == "complex64" else "float64")
        return _compound(dtype.nbytes, [("r", 0, half), ("i", dtype.nbytes // 2, half)])
    return _integer(dtype.nbytes, signed=name.startswith("int"))


def dataspace(shape: Sequence[int] | None) -> bytes:
    """The body of a Dataspace message; `shape` None means that there are no elements at all."""
    if shape == ():
        return _SCALAR
    if shape is None:
        return bytes((2, 0, 0, 2))
    return bytes((1, len(shape), 0, 0, 0, 0, 0, 0)) + Struct(f"<{len(shape)}Q").pack(*shape)


def _attribute_parts(value: str | int | float | Sequence[int]) -> tuple[bytes, bytes, bytes]:
    """Datatype, dataspace and bytes of an attribute's value."""
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass") or b"\0"
        return text_type(len(text)), dataspace(()), text
    if isinstance(value, float):
        return datatype("float64"), dataspace(()), _DOUBLE.pack(value)
    if isinstance(value, int):
        return datatype("int64"), dataspace(()), _INTEGER.pack(value)
    return datatype("int64"), dataspace((len(value),)), Struct(f"<{len(value)}q").pack(*value)


@lru_cache
def _title(name: str, kind_nbytes: int, space_nbytes: int) -> bytes:
    title = name.encode() + b"\0"
    return _ATTRIBUTE.pack(1, len(title), kind_nbytes, space_nbytes) + _filled(title)


def attribute(name: str, value: str | int | float | Sequence[int]) -> bytes:
    """An Attribute message: UTF-8 text, a number, or a vector of integers."""
    kind, space, content = _attribute_parts(value)
    title = _title(name, len(kind), len(space))
    return message(ATTRIBUTE, b"".join((title, _filled(kind), _filled(space), content)))


@lru_cache
def _integer_title(name: str) -> bytes:
    return attribute(name, 0)[:-8]


def integer_attribute(name: str, value: int) -> bytes:
    """`attribute` of one integer, for those that are made often."""
    return _integer_title(name) + _INTEGER.pack(value)


def text_attribute(name: str, text: str) -> bytes:
    """`attribute` of a text, for those that are made often."""
    content = text.encode("utf-8", "surrogatepass") or b"\0"
    title = _title(name, _TEXT_TYPE.size, len(_SCALAR))
    nbytes = len(content) + 7 & -8
    head = MESSAGE.pack(ATTRIBUTE, len(title) + 16 + nbytes, 0)
    kind = _TEXT_TYPE.pack(0x13, 0x11, 0, 0, len(content))
    return b"".join((head, title, kind, _SCALAR, content.ljust(nbytes, b"\0")))


_FILL_VALUE = message(FILL_VALUE, bytes((2, 1, 1, 0)))  # allocated early, never filled


def layout(address: int, nbytes: int) -> bytes:
    """A Data Layout message: `nbytes` in one piece at `address`."""
    return message(LAYOUT, LAYOUT_FIELDS.pack(3, 1, address if nbytes else UNDEFINED, nbytes))


LAYOUT_ADDRESS = MESSAGE.size + 2  # where the address lies in `layout`'s message


def dataset_header(
    kind: bytes, shape: Sequence[int] | None, address: int, nbytes: int, attributes: bytes, n: int
) -> bytes:
    """A dataset's object header, the Layout message first, then its `n` attributes' messages.

    `attributes` are messages too, so a writer can keep the header as a template and patch the
    address (at `DATASET_ADDRESS`) and the last attribute's text in place.
    """
    described = message(DATATYPE, kind) + message(DATASPACE, dataspace(shape))
    return object_header(layout(address, nbytes) + described + _FILL_VALUE + attributes, n + 4)


DATASET_ADDRESS = OBJECT_HEADER.size + LAYOUT_ADDRESS


def _link(name: str, order: int, kind: int, target: bytes) -> bytes:
    encoded = name.encode()
    wide = len(encoded) > 255
    length = len(encoded).to_bytes(2 if wide else 1, "little")
    charset = not name.isascii()
    body = _LINK.pack(1, 0b11100 | wide, kind, order, charset) + length + encoded + target
    return message(LINK, body)


def address_in_link(name: str) -> int:
    """Where the address lies in the message of `hard_link` for `name`."""
    nbytes = len(name.encode())
    return MESSAGE.size + 12 + (2 if nbytes > 255 else 1) + nbytes


def group_link(name: str, order: int) -> tuple[bytes, int]:
    """`hard_link` of a group that has no address yet, and where the address belongs in it."""
    encoded = name.encode()
    size = len(encoded)
    if size > 255:
        return hard_link(name, order, 0), address_in_link(name)
    head = _SHORT_LINK.pack(
        LINK, size + 28 & -8, 0, 1, 0b11100, 0, order, 0 if name.isascii() else 1, size
    )
    return (head + encoded).ljust(8 + (size + 28 & -8), b"\0"), 21 + size


def hard_link(name: str, order: int, address: int) -> bytes:
    """A Link message: `name` is the object whose header is at `address`."""
    return _link(name, order, 0, ADDRESS.pack(address))


def external_link(name: str, order: int, file: str, path: str) -> bytes:
    """A Link message: `name` is what `file`, beside this one, has at `path`."""
    target = b"\0" + file.encode() + b"\0" + path.encode() + b"\0"
    return _link(name, order, 64, len(target).to_bytes(2, "little") + target)


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


def text_dataset(text: str, start: int) -> bytes:
    """A scalar dataset that holds `text`, to lie at `start`."""
    content = text.encode("utf-8", "surrogatepass") or b"\0"
    return dataset(text_type(len(content)), (), content, start)
