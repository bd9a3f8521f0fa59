"""What is on disk, written down once: names, attributes, index columns, journal fields."""

from dataclasses import dataclass

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

DATASET_ATTRS = {
    "dtype": "torch's name of the element type",
    "shape": "of the captured tensor, where the dataset's own shape differs",
    "stride": "of the captured tensor in elements; the dataset itself is dense, row-major",
    "storage_offset": "of the captured tensor in elements",
    "device": "where the tensor lay",
    "layout": "how the value lies over the mesh, such as 'b s h[tp]'",
    "kept": "full, summary or nothing",
    "problem": "why a value could not be stored; the dataset then has no elements",
    "seen_in": "twin: stored by the twin of a fused kernel, not by the kernel itself",
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
NO_ROW = 0xFFFF_FFFF

INDEX_DATASETS = {
    "records": "one row per value: a compound of the columns below",
    "calls": "JSON list; each call as the list of CALL_FIELDS",
    "forms": "JSON list; each form as the list of FORM_FIELDS",
}

CALL_FIELDS = (
    "op",
    "call",
    "order",
    "target",
    "source",
    "phase",
    "arguments",
    "origins",
    "kernel",
)

FORM_FIELDS = (
    "slot",
    "dtype",
    "shape",
    "stride",
    "storage_offset",
    "device",
    "layout",
    "kept",
    "problem",
    "seen_in",
    "stored",  # null, or [dtype, shape, [[attribute, value], ...]] of what stands for the elements
)

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


@dataclass(frozen=True)
class Kind:
    """A kind of journal record and what its prefix holds after the fields."""

    number: int
    holds: str


KINDS = {
    "part": Kind(1, "first record of a part: JSON object of PART_ATTRS"),
    "call": Kind(2, "a call: JSON list of CALL_FIELDS, padded with spaces"),
    "form": Kind(3, "a form: JSON list of FORM_FIELDS, padded with spaces"),
    "value": Kind(4, "a value: the dataset's object header; its bytes follow the prefix"),
    "link": Kind(5, "a link to an earlier value of the step: JSON list [part, row]"),
    "commit": Kind(6, "group headers, after the prefix; written at a commit"),
    "index": Kind(7, "the index datasets, after the prefix; written when the part is sealed"),
    "wrap": Kind(8, "only in the ring: the next record is at its beginning"),
}

MAX_RANK = 32  # HDF5's limit on dims
MAX_LINKS = 60_000  # in one group; HDF5's version-1 header ends at 65,535 messages
MAX_ATTRIBUTE = 15_000  # characters; a longer text is a dataset, an underscore before its name
MAX_TEXT = 1 << 20  # bytes of text in one journal record
