"""The index of a sealed part: its rows, its calls and its forms, as the file lists them."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive import encoder, schema
from dumpcmp.archive.read.contents import Contents, ListedCalls, read_forms
from dumpcmp.archive.read.partfile import (
    PartFile,
    damaged_at,
    hard_links,
    index_content,
    root_address,
)
from dumpcmp.archive.schema import INDEX_GROUP, ROW_TYPE, Form

_MOST_LISTS = 8  # of forms, that are kept in mind
_FORMS: dict[bytes, list[Form]] = {}  # by their bytes
_LISTED: WeakValueDictionary[bytes, ListedCalls] = WeakValueDictionary()  # by their bytes


def index_address(file: PartFile) -> int | None:
    """Where the index of a part is; None where it has none yet: more may be written to it."""
    first = dict(islice(hard_links(file, root_address(file)), 1))  # the index comes first
    return first.get(INDEX_GROUP)


def read_index(file: PartFile) -> Contents | None:
    """The contents of a sealed part by its index; None where there is none yet."""
    if (address := index_address(file)) is None:
        return None
    file.need(address, root_address(file))
    links = dict(hard_links(file, address))
    if not links.keys() >= set(schema.INDEX_DATASETS):
        file.fail(address, "the index is not whole")
    rows = _read_rows(file, links["records"])
    calls = _read_calls(file, links["calls"])
    forms = _read_forms(file, links["forms"])
    return Contents(file.path, rows, calls, forms, sealed=True)


def _read_calls(file: PartFile, address: int) -> ListedCalls:
    """The calls of a part; what zlib has found to be whole is read when it is asked for."""
    found, content = index_content(file, address)
    calls = _LISTED.get(content)
    if calls is None:
        unpack = partial(_listed_in, content, file.path, found.address)
        calls = ListedCalls(unpack=unpack) if found.is_packed else ListedCalls(unpack())
        _LISTED[content] = calls
    return calls


def _read_forms(file: PartFile, address: int) -> list[Form]:
    """The forms of a part; the other side of a comparison often lists the same bytes."""
    found, content = index_content(file, address)
    forms = _FORMS.get(content)
    if forms is None:
        forms = read_forms(file.path, _listed_in(content, file.path, found.address))
        while len(_FORMS) >= _MOST_LISTS:
            _FORMS.pop(next(iter(_FORMS), b""), None)  # another thread may have been faster
        _FORMS[content] = forms
    return forms


def _read_rows(file: PartFile, address: int) -> NDArray[np.void]:
    (found, content), wanted = index_content(file, address), encoder.numpy_datatype(ROW_TYPE)
    if not found.datatype.startswith(wanted) or len(found.shape) != 1:
        file.fail(address, "the index has other columns than this version of dumpcmp knows")
    if found.nbytes != found.shape[0] * ROW_TYPE.itemsize:
        file.fail(address, "the index has another length than its rows")
    return np.frombuffer(content, ROW_TYPE)


def _listed_in(content: bytes, path: Path, place: int) -> list[Any]:
    try:
        listed = json.loads(content)
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list):
        raise damaged_at(path, place, "a JSON list should be here")
    return listed
