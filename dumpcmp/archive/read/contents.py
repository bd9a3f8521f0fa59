"""What one part holds, however it was found: by its index, by its journal, or by its groups."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive import encoder
from dumpcmp.archive.journal import LOST_CALL, call_json, read_call, read_form
from dumpcmp.archive.read.decoder import PartFile, dataset, hard_links, root_address
from dumpcmp.archive.schema import (
    ABSENT,
    CALL_FIELDS,
    INDEX_DATASETS,
    INDEX_GROUP,
    LOST_FORM,
    ROW_TYPE,
    Form,
)
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.record import Call

LISTED_LOST = json.loads(call_json(LOST_CALL))


@dataclass(eq=False)
class Contents:
    """The rows of a part, and the calls and forms that they refer to by number."""

    path: Path
    rows: NDArray[np.void]
    listed_calls: list[Any]
    forms: list[Form]
    model: str = ""
    step: int = 0
    sealed: bool = False  # the part has its index: nothing more will be written to it
    problems: tuple[str, ...] = ()
    elsewhere: Mapping[int, tuple[Path, int]] = field(default_factory=dict)  # row -> in a ring
    datasets: Mapping[int, str] = field(default_factory=dict)  # row -> what cannot be mapped

    def __post_init__(self) -> None:
        """Raise where a row refers to a call or form that does not exist."""
        rows = self.rows[self.rows["call"] != ABSENT]
        for column, limit in (("call", len(self.ops)), ("form", len(self.forms))):
            if rows.size and int(rows[column].max()) >= limit:
                raise damaged(self.path, f"a {column} below {limit}", int(rows[column].max()))

    @cached_property
    def ops(self) -> list[tuple[str, int]]:
        """Op and number of each call."""
        return [self._op(listed) for listed in self.listed_calls]

    def _op(self, listed: Any) -> tuple[str, int]:
        match listed:
            case [str(op), int(call), *_] if len(listed) == len(CALL_FIELDS):
                return op, call
        raise damaged(self.path, "a call", listed)

    def calls(self) -> dict[int, Call]:
        """The calls by their numbers, checked; those that were lost are left out."""
        found = enumerate(self.listed_calls)
        return {number: self._call(listed) for number, listed in found if listed != LISTED_LOST}

    def _call(self, listed: Any) -> Call:
        try:
            return read_call(listed, self.model, self.step)
        except (TypeError, ValueError):
            raise damaged(self.path, "a call", listed) from None

    def has_row(self, row: int) -> bool:
        """Whether `row` is there and was not lost."""
        return row < len(self.rows) and bool(self.rows["call"][row] != ABSENT)

    def name(self, row: int) -> tuple[str, int, str]:
        """Op, call and slot of the value in `row`."""
        call, form = self.rows[row].item()[:2]
        return *self.ops[call], self.forms[form].slot


def damaged(path: Path, what: str, found: Any) -> ArchiveError:
    """The error of an index that has `found` where `what` should be."""
    return ArchiveError(
        f"{path}: {what} should be here, not {str(found)[:80]!r}",
        hint="the index is damaged; dumpcmp audit says what is left of the part",
    )


def read_forms(path: Path, listed: Iterable[Any]) -> list[Form]:
    """The forms that the part at `path` lists; None stands for one that was lost."""
    found = []
    for each in listed:
        try:
            found.append(LOST_FORM if each is None else read_form(each))
        except (TypeError, ValueError):
            raise damaged(path, "a form", each) from None
    return found


def read_index(file: PartFile) -> Contents | None:
    """The contents of a sealed part by its index; None where there is none yet."""
    root = dict(islice(hard_links(file, root_address(file)), 1))  # the index comes first
    if INDEX_GROUP not in root:
        return None
    links = dict(hard_links(file, root[INDEX_GROUP]))
    if links.keys() < set(INDEX_DATASETS):
        file.fail(root[INDEX_GROUP], "the index is not whole")
    rows = _read_rows(file, links["records"])
    calls, forms = (_read_list(file, links[name]) for name in ("calls", "forms"))
    return Contents(file.path, rows, calls, read_forms(file.path, forms), sealed=True)


def _read_rows(file: PartFile, address: int) -> NDArray[np.void]:
    found = dataset(file, address)
    wanted = encoder.numpy_datatype(ROW_TYPE)
    if not found.datatype.startswith(wanted) or len(found.shape) != 1:
        file.fail(address, "the index has other columns than this version of dumpcmp knows")
    if found.nbytes != found.shape[0] * ROW_TYPE.itemsize:
        file.fail(address, "the index has another length than its rows")
    content = file.read(found.address, found.nbytes) if found.nbytes else b""
    return np.frombuffer(content, ROW_TYPE)


def _read_list(file: PartFile, address: int) -> list[Any]:
    found = dataset(file, address)
    try:
        listed = json.loads(file.read(found.address, found.nbytes))
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list):
        file.fail(found.address, "a JSON list should be here")
    return listed
