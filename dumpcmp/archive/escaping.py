"""Names from a model as names in a file: no two collide and none leaves its directory."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from urllib.parse import unquote_to_bytes

import xxhash

from dumpcmp.archive.schema import CALL_ATTRS, INDEX_GROUP

LONGEST = 150  # bytes of an escaped name; a longer one ends in a digest of itself instead

_RESERVED = frozenset((INDEX_GROUP, *(f"_{name}" for name in CALL_ATTRS)))
_UNSAFE_LINK = re.compile(r"[%#/\x00-\x1f\x7f\ud800-\udfff]")
_UNSAFE_FILE = re.compile(r"[^A-Za-z0-9_.+=,@ -]")


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def _escape(name: str, unsafe: re.Pattern[str]) -> str:
    """`name` with unsafe characters as %XX; the empty name is a lone %."""
    if not name:
        return "%"
    safe = unsafe.sub(_percent, name)
    if safe in _RESERVED or safe.startswith((".", " ")):
        safe = f"%{ord(safe[0]):02X}{safe[1:]}"
    encoded = safe.encode()
    if len(encoded) <= LONGEST:
        return safe
    digest = xxhash.xxh3_128_hexdigest(name.encode("utf-8", "surrogatepass"))
    return f"{encoded[:LONGEST].decode(errors='ignore')}~{digest}"


@lru_cache(maxsize=65_536)
def link_name(name: str) -> str:
    """The name of an HDF5 link for one component of an op, or for a slot."""
    return _escape(name, _UNSAFE_LINK)


def group_path(op: str, call: int) -> tuple[str, ...]:
    """The groups from a part's root to the call of `op`: ``("layers.0.attn", "linear#0")``."""
    outer, last = _op_path(op)
    return (*outer, f"{last}#{call}")


def dataset_path(op: str, call: int, slot: str) -> str:
    """Where a part has the dataset of a value: ``layers.0.attn/linear#0/output.0``."""
    return "/".join((*group_path(op, call), link_name(slot)))


@lru_cache(maxsize=16_384)
def _op_path(op: str) -> tuple[tuple[str, ...], str]:
    *outer, last = op.split("/")
    return tuple(map(link_name, outer)), link_name(last)


def file_name(name: str) -> str:
    """The name of a directory or file that stands for `name`."""
    return _escape(name, _UNSAFE_FILE)


def unescaped(name: str) -> str:
    """The name that was escaped to `name`; one that was too long stays as it is."""
    if name == "%":
        return ""
    return unquote_to_bytes(name.encode()).decode("utf-8", "surrogatepass")


def name_of_file(escaped: str) -> str | None:
    """The name that `file_name` escaped, or None where it was too long to be kept."""
    return None if len(escaped.encode()) > LONGEST else unescaped(escaped)


def listed(numbers: Iterable[int], most: int = 10) -> str:
    """The first `most` of `numbers` in words: ``1, 2, 5 and more``."""
    first = list(islice(numbers, most + 1))
    return ", ".join(map(str, first[:most])) + (" and more" if len(first) > most else "")


def gaps(numbers: Iterable[int], start: int = 0) -> Iterator[int]:
    """The numbers from `start` to the largest of `numbers` that are not among them, lazily."""
    for number in sorted(numbers):
        yield from range(start, number)
        start = number + 1
