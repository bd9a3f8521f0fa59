"""What is on disk, written down once: names, attributes, index columns, journal records, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache, partial
from operator import attrgetter
from struct import Struct
from typing import Any, get_type_hints
from zlib import crc32

import numpy as np

from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call, Kept, Phase, Record, Stored

SCHEMA_VERSION = 5  # any change to the tables below bumps it; docs/format.md repeats them
# 4: runs have no manifest. 3: steps share nothing. 2: calls have no thread either, and no part is
# laid out anew when sealed.
KNOWN_VERSIONS = (2, 3, 4, 5)

RANK_DIRECTORY = r"worldsize(?P<world_size>[1-9]\d{0,5})_global_rank(?P<rank>\d{1,6})"
RUN_FILE = "run.json"
MANIFEST_FILE = "manifest.json"
STEP_DIRECTORY = r"0|[1-9][0-9]{0,17}"
PART_FILE = r"part-(?P<number>\d{4,9})\.h5"
SHARED_DIRECTORY = "shared"  # beside a model's steps: parts with what several of them hold
SHARED = 1 << 31  # added to the number of a shared part, where a step refers to it
SHARED_STEP = -1  # what those parts say as their step
INDEX_GROUP = "_index"

RUN_FIELDS = {
    "schema": "version of this format",
    "world_size": "number of ranks of the run",
    "rank": "global rank that wrote this directory",
    "started": "UTC time at which the capture began, ISO 8601",
    "ended": "UTC time at which it ended, or null",
    "complete": "true once the capture has ended and every part is sealed",
    "problem": "why the capture stopped early, or the empty string",
    "num_records": "Records written, links included; 0 until the end",
    "nbytes": "bytes of tensors written; 0 until the end",
    "num_shared": "Records among them whose bytes lie in a shared part; 0 until the end",
    "nbytes_shared": "bytes among them that another step has stored; 0 until the end",
    "manifest": "the last seal of manifest.json, or the empty string until the end",
    "writer": "host, process and shared-memory ring of the writer, null once it has ended",
    "run": "what the caller says of the run: mode, command, versions, mesh",
    "digest": "xxh3_128 of all these facts but this one, hexadecimal",
}

MANIFEST_COLUMNS = {
    "model": "name of the root module",
    "step": "number of its call",
    "part": "number of the part within its step",
    "values": "object: how many values it has of each kind of slot, links included",
    "names": "xxh3_128 of what its values are, but for their bytes, hexadecimal",
    "seal": "xxh3_128 of the seal before it and of this line without its seal, hexadecimal",
}

PART_ATTRS = {
    "schema": "version of this format",
    "model": "name of the root module",
    "step": "number of its call; -1: the part is shared by steps",
    "rank": "global rank that wrote the part",
    "world_size": "number of ranks of the run",
    "part": "number of the part within its step, or among those that are shared",
}

CALL_ATTRS = {
    "op": "the op's name as captured, unescaped",
    "call": "nth call of the op",
    "order": "position in the step's execution",
    "target": "qualified name of the function, or of the module's class",
    "source": "line of the user's program",
    "phase": "forward, backward or recompute",
    "arguments": "argument tree as JSON",
    "origins": "JSON list of the ops inside a fused kernel, as op#call",
    "kernel": "name of a fused kernel",
    "thread": "name of the thread that ran it; the main thread has none",
}
CALL_FIELDS = tuple(CALL_ATTRS)  # the fields of a Call, but its model and step
NUM_OLD_FIELDS = 9  # that version 2 has of a call


def _told(meaning: str, default: Any = "") -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Form:
    """What all values of one slot, type and shape share.

    A line here is a field everywhere: in the index and the journal, and, where a meaning is told,
    an attribute of the dataset. A Record has an attribute of the same name.
    """

    slot: str = ""
    dtype: str = _told("torch's name of the element type")
    shape: tuple[int, ...] = _told(
        "of the captured tensor, where the dataset's own shape differs", ()
    )
    stride: tuple[int, ...] = _told(
        "of the captured tensor in elements; the dataset itself is dense, row-major", ()
    )
    storage_offset: int = _told("of the captured tensor in elements", 0)
    device: str = _told("where the tensor lay", "cpu")
    layout: str = _told("how the value lies over the mesh, such as 'b s h[tp]'")
    kept: Kept = _told("full, summary or nothing", Kept.FULL)  # noqa: RUF009
    problem: str = _told("why a value could not be stored; the dataset then has no elements")
    seen_in: str = _told(
        "twin: stored by the twin of a fused kernel, not by the kernel itself; vmap 1: the whole "
        "batch, first in its shape, of a value inside of torch.func.vmap of that level"
    )
    stored: Stored | None = None  # on disk [dtype, shape, [[attribute, value], ...]], or null

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What it says of a Record: its fields without the slot, which is in the Key."""
        return {name: getattr(self, name) for name in FORM_FIELDS[1:]}

    @property
    def held(self) -> tuple[str, tuple[int, ...]]:
        """Type and shape of what the dataset holds: the elements, or what stands for them."""
        return (self.stored.dtype, self.stored.shape) if self.stored else (self.dtype, self.shape)


FORM_FIELDS = tuple(each.name for each in fields(Form))
LOST_FORM = Form(device="", kept=Kept.NOTHING, problem="lost")  # in the place of one that was lost

_of_record = attrgetter("key.slot", *FORM_FIELDS[1:])


def form_of(record: Record) -> Form:
    """The form of `record`: all but its key, order, rank and link."""
    return Form(*_of_record(record))


FORM_FACTS = tuple(name for name in FORM_FIELDS[1:] if name != "kept")
_all_but_kept = attrgetter("key.slot", *FORM_FACTS)


def form_key(record: Record) -> tuple[Any, ...]:
    """What decides the form of a Record, as a dictionary's key. It is asked for every value.

    Full is True here, because an enum hashes slowly.
    """
    return _all_but_kept(record), record.kept is Kept.FULL or record.kept


DATASET_ATTRS: dict[str, str] = {
    **{each.name: each.metadata["meaning"] for each in fields(Form) if each.metadata},
    "digest": "xxh3_128 of the dataset's bytes, hexadecimal",
}

ROWS_FIELDS = {  # of the JSON object in the arguments of <effects>/rows
    "shape": "the token dims of the step's inputs: [batch, length] or [tokens]",
    "runs": "list of [request, first position, rows]: the rows in row-major order; request null: "
    "padding",
    "source": "the arguments of the model that told, such as position_ids, attention_mask",
}

INDEX_COLUMNS = (
    ("call", "<u4", "position in _index/calls"),
    ("form", "<u4", "position in _index/forms"),
    ("order", "<u8", "position of the call in the step's execution"),
    ("part", "<u4", "number of the part that holds the bytes; of a shared one, 2147483648 more"),
    ("same", "<u4", "row of the value that this one links to, in that part; 4294967295: none"),
    ("header", "<u8", "address of the dataset's object header in that part; 0 in another part"),
    ("offset", "<u8", "address of the bytes in that part; 0 where there are none"),
    ("nbytes", "<u8", "how many bytes"),
    ("digest", "S32", "xxh3_128 of the bytes, hexadecimal"),
)
NO_ROW = ABSENT = 0xFFFF_FFFF  # as `same`: no link; as `call`: the value was lost
ROW_TYPE = np.dtype([(name, kind) for name, kind, _ in INDEX_COLUMNS])
ROW = Struct("<" + "".join({"<u4": "I", "<u8": "Q", "S32": "32s"}[k] for _, k, _ in INDEX_COLUMNS))
assert ROW.size == ROW_TYPE.itemsize


def lost_row(part: int) -> tuple[Any, ...]:
    """The row of a value that was lost, so that the others keep their numbers."""
    return ABSENT, 0, 0, part, NO_ROW, 0, 0, 0, b""


INDEX_DATASETS = {
    "records": "one row per value: a compound of the columns below",
    "calls": "JSON list; each call as the list of CALL_FIELDS",
    "forms": "JSON list; each form as the list of FORM_FIELDS",
}

JOURNAL_AT = 128  # where a part's first journal record begins, after the superblock
ALIGNMENT = 64  # of every journal record and of every tensor's bytes
MAGIC = b"dcR1"
WAITING = b"dcW1"  # only in the ring: a copy into this record is still under way
JOURNAL_FIELDS = (
    ("magic", "4s", "the bytes dcR1"),
    ("crc", "I", "CRC-32 of bytes 8..63 of the prefix; where it holds text, of all from byte 8"),
    ("nonce", "Q", "random number of the part, the same in all of its records"),
    ("sequence", "Q", "rises within a part"),
    ("address", "Q", "where this record begins in the part"),
    ("nbytes", "Q", "bytes that follow the prefix, before they are padded to 64"),
    ("kind", "H", "see KINDS"),
    ("blocks", "H", "length of the prefix in units of 64 bytes"),
    ("call", "I", "number of the call in this part"),
    ("form", "I", "number of the form in this part"),
    ("row", "I", "number of the value in this part: its row in the index"),
    ("order", "Q", "position of the call in the step's execution"),
)
HEADER = Struct("<" + "".join(code for _, code, _ in JOURNAL_FIELDS))
PREFIX_HEADER = HEADER.size  # 64 bytes; text or an object header follows
CRC, CRC_AT = Struct("<I"), 4
SEQUENCE = ADDRESS = Struct("<Q")
SEQUENCE_AT, ADDRESS_AT = 16, 24

KINDS = (  # of journal records: number, name, and what the prefix holds after the fields
    (1, "part", "first record of a part: JSON object of PART_ATTRS"),
    (2, "call", "a call: JSON list of CALL_FIELDS, padded with spaces"),
    (3, "form", "a form: JSON list of FORM_FIELDS, padded with spaces"),
    (4, "value", "a value: the dataset's object header; its bytes follow the prefix"),
    (5, "link", "a link to an earlier value of the step, or a shared one: JSON list [part, row]"),
    (6, "commit", "group headers, after the prefix; written at a commit"),
    (7, "index", "the index datasets, after the prefix; written when the part is sealed"),
    (8, "wrap", "only in the ring: the next record is at its beginning"),
    (9, "dense", "all else, after the prefix, in a part that was laid out anew when it was sealed"),
)
PART, CALL, FORM, VALUE, LINK, COMMIT, INDEX, WRAP, DENSE = (number for number, _, _ in KINDS)
TEXTS = frozenset((PART, CALL, FORM, LINK))  # kinds whose prefix holds JSON

MAX_RANK = 32  # HDF5's limit on dims
MAX_LINKS = 60_000  # in one group; HDF5's version-1 header ends at 65,535 messages
MAX_ATTRIBUTE = 15_000  # characters; a longer text is a dataset, an underscore before its name
MAX_TEXT = 1 << 20  # bytes of text in one journal record
MAX_CACHED = 1000  # characters of arguments that may come again

_dump = json.JSONEncoder(separators=(",", ":")).encode
_quoted = json.encoder.encode_basestring_ascii  # what `_dump` does with a text


def text_prefix(text: bytes) -> bytes:
    """A prefix that holds `text`, filled up with spaces, its fields still zero."""
    return bytes(PREFIX_HEADER) + text.ljust(len(text) + ALIGNMENT - 1 & -ALIGNMENT)


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
def repeated_json(*values: Any) -> str:
    """The end of a call's JSON list: what many calls have in common."""
    return _dump(values)[1:]


def call_json(call: Call) -> bytes:
    """`call` as the JSON list of CALL_FIELDS."""
    make = repeated_json if len(call.arguments) <= MAX_CACHED else repeated_json.__wrapped__
    return f"[{_quoted(call.op)},{call.call},{call.order},{make(*_REPEATED(call))}".encode()


LOST_CALL = Call("", 0, Op(""), 0, 0)  # in the place of a call that was lost


def form_json(form: Form) -> bytes:
    """`form` as the JSON list of FORM_FIELDS."""
    stored = form.stored and (form.stored.dtype, form.stored.shape, form.stored.attributes)
    return json_text([form.slot, *(form.facts | {"stored": stored}).values()])


def _instance(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind}")
    return value


def checked_sizes(sizes: Any) -> tuple[int, ...]:
    """`sizes` as a shape or stride; ValueError where they are none."""
    if len(sizes) > 1024 or not all(type(size) is int and 0 <= size < 1 << 63 for size in sizes):
        raise ValueError(f"{str(sizes)[:80]} is no shape")
    return tuple(sizes)


def _stored(listed: Any) -> Stored | None:
    if listed is None:
        return None
    dtype, shape, attributes = listed
    pairs = tuple((str(name), value) for name, value in attributes)
    return Stored(_instance(str, dtype), checked_sizes(shape), pairs)


# How a field of this type is read back from JSON, with suspicion.
_READERS: dict[Any, Callable[[Any], Any]] = {
    str: partial(_instance, str),
    Op: lambda text: Op(_instance(str, text)),
    int: partial(_instance, int),
    Kept: Kept,
    Phase: lambda text: Phase(text) if text in tuple(Phase) else Phase.FORWARD,
    tuple[int, ...]: checked_sizes,
    tuple[str, ...]: lambda texts: tuple(map(str, _instance(list, texts))),
    Stored | None: _stored,
}
_CALL_READERS = [_READERS[get_type_hints(Call)[name]] for name in CALL_FIELDS]
_FORM_READERS = [_READERS[get_type_hints(Form)[name]] for name in FORM_FIELDS]


def _fields(listed: Any, readers: list[Callable[[Any], Any]]) -> list[Any]:
    return [read(value) for read, value in zip(readers, _instance(list, listed), strict=True)]


def completed_call(listed: Any) -> Any:
    """A listed call as this version lists it; the main thread ran those of version 2."""
    is_old = isinstance(listed, list) and len(listed) == NUM_OLD_FIELDS
    return [*listed, ""] if is_old else listed


def read_call(listed: Any, model: str, step: int) -> Call:
    """The Call that `call_json` listed; TypeError or ValueError where it is none."""
    op, call, order, *rest = _instance(list, listed)
    own = _fields([op, call, order], _CALL_READERS[:3])
    rest = [tuple(each) if isinstance(each, list) else each for each in rest]
    is_long = any(isinstance(each, str) and len(each) > MAX_CACHED for each in rest)
    read = _repeated_fields.__wrapped__ if is_long else _repeated_fields
    return Call(model, step, *own, *read(*rest))


@lru_cache(maxsize=4096)
def _repeated_fields(*listed: Any) -> list[Any]:
    """What many calls have in common; lists are tuples here."""
    plain = [list(each) if isinstance(each, tuple) else each for each in listed]
    return _fields(plain, _CALL_READERS[3:])


def read_form(listed: Any) -> Form:
    """The Form that `form_json` listed; TypeError or ValueError where it is none."""
    return Form(*_fields(listed, _FORM_READERS))
