"""What is on disk, written down once: names, attributes, index columns, journal fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from operator import attrgetter
from struct import Struct
from typing import Any, cast

import numpy as np

from dumpcmp.nouns.record import Kept, Record, Stored

SCHEMA_VERSION = 2  # any change to the tables below bumps it; docs/format.md repeats them

RANK_DIRECTORY = r"worldsize(?P<world_size>[1-9]\d{0,5})_global_rank(?P<rank>\d{1,6})"
RUN_FILE = "run.json"
STEP_DIRECTORY = r"0|[1-9][0-9]{0,17}"
PART_FILE = r"part-(?P<number>\d{4,9})\.h5"
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
    "writer": "host, process and shared-memory ring of the writer, null once it has ended",
    "run": "what the caller says of the run: mode, command, versions, mesh",
}

PART_ATTRS = {
    "schema": "version of this format",
    "model": "name of the root module",
    "step": "number of its call",
    "rank": "global rank that wrote the part",
    "world_size": "number of ranks of the run",
    "part": "number of the part within its step",
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
}
CALL_FIELDS = tuple(CALL_ATTRS)  # the fields of a Call, but its model and step


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
    seen_in: str = _told("twin: stored by the twin of a fused kernel, not by the kernel itself")
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


def _make_form_key() -> Callable[[Record], tuple[Any, ...]]:
    """What decides the form of a Record, as a dictionary's key. It is asked for every value.

    Made as text, as dataclasses make their methods: attrgetter takes twice the time. Full is True
    here, because an enum hashes slowly.
    """
    read = {"slot": "record.key.slot", "kept": "record.kept is full or record.kept"}
    told = ", ".join(read.get(name, f"record.{name}") for name in FORM_FIELDS)
    made: dict[str, Any] = {"full": Kept.FULL}
    exec(f"def form_key(record): return ({told})", made)
    return cast(Callable[[Record], tuple[Any, ...]], made["form_key"])


form_key = _make_form_key()


DATASET_ATTRS: dict[str, str] = {
    **{each.name: each.metadata["meaning"] for each in fields(Form) if each.metadata},
    "digest": "xxh3_128 of the dataset's bytes, hexadecimal",
}

INDEX_COLUMNS = (
    ("call", "<u4", "position in _index/calls"),
    ("form", "<u4", "position in _index/forms"),
    ("order", "<u8", "position of the call in the step's execution"),
    ("part", "<u4", "number of the part that holds the bytes"),
    ("same", "<u4", "row of the value that this one links to, in that part; 4294967295: none"),
    ("header", "<u8", "address of the dataset's object header in that part"),
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
JOURNAL_FORMAT = "<" + "".join(code for _, code, _ in JOURNAL_FIELDS)
PREFIX_HEADER = 64  # bytes of the fields above; text or an object header follows

KINDS = (  # of journal records: number, name, and what the prefix holds after the fields
    (1, "part", "first record of a part: JSON object of PART_ATTRS"),
    (2, "call", "a call: JSON list of CALL_FIELDS, padded with spaces"),
    (3, "form", "a form: JSON list of FORM_FIELDS, padded with spaces"),
    (4, "value", "a value: the dataset's object header; its bytes follow the prefix"),
    (5, "link", "a link to an earlier value of the step: JSON list [part, row]"),
    (6, "commit", "group headers, after the prefix; written at a commit"),
    (7, "index", "the index datasets, after the prefix; written when the part is sealed"),
    (8, "wrap", "only in the ring: the next record is at its beginning"),
)

MAX_RANK = 32  # HDF5's limit on dims
MAX_LINKS = 60_000  # in one group; HDF5's version-1 header ends at 65,535 messages
MAX_ATTRIBUTE = 15_000  # characters; a longer text is a dataset, an underscore before its name
MAX_TEXT = 1 << 20  # bytes of text in one journal record
