"""What one part holds, however it was found: by its index, by its journal, or by its groups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.archive import encoder
from dumpcmp.archive.read.decoder import PartFile, dataset, hard_links, root_address
from dumpcmp.archive.schema import CALL_FIELDS, FORM_FIELDS, INDEX_DATASETS, INDEX_GROUP
from dumpcmp.archive.write.part import ROW_TYPE
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call, Kept, Phase, Stored

ABSENT = 0xFFFF_FFFF  # as a row's call: the record was lost
LOST_CALL = ["", 0, 0, "", "", "forward", "", [], ""]  # in the place of a call that was lost
LOST_FORM = ["", "", [], [], 0, "", "", "nothing", "lost", "", None]


@dataclass(frozen=True, slots=True)
class FormFacts:
    """A form as read back: what all values of it share."""

    slot: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    device: str
    layout: str
    kept: Kept
    problem: str
    seen_in: str
    stored: Stored | None


@dataclass(eq=False)
class Contents:
    """The rows of a part, and the calls and forms that they refer to by number."""

    path: Path
    rows: NDArray[np.void]
    listed_calls: list[Any]
    listed_forms: list[Any]
    model: str = ""
    step: int = 0
    sealed: bool = False  # the part has its index: nothing more will be written to it
    problems: tuple[str, ...] = ()
    elsewhere: Mapping[int, tuple[Path, int]] = field(default_factory=dict)  # row -> in a ring
    datasets: Mapping[int, str] = field(default_factory=dict)  # row -> what cannot be mapped

    @cached_property
    def forms(self) -> list[FormFacts]:
        """The forms, checked."""
        return [self._form(listed) for listed in self.listed_forms]

    @cached_property
    def ops(self) -> list[tuple[str, int]]:
        """Op and number of each call."""
        return [self._op(listed) for listed in self.listed_calls]

    def calls(self) -> dict[int, Call]:
        """The calls by their numbers, checked; those that were lost are left out."""
        found = enumerate(self.listed_calls)
        return {number: self._call(listed) for number, listed in found if listed != LOST_CALL}

    def has_row(self, row: int) -> bool:
        """Whether `row` is there and was not lost."""
        return row < len(self.rows) and bool(self.rows["call"][row] != ABSENT)

    def _op(self, listed: Any) -> tuple[str, int]:
        match listed:
            case [str(op), int(call), *_] if len(listed) == len(CALL_FIELDS):
                return op, call
        raise self._error("a call", listed)

    def _call(self, listed: Any) -> Call:
        match listed:
            case [str(op), int(call), int(order), str(target), str(source), str(phase),
                  str(arguments), list(origins), str(kernel)]:  # fmt: skip
                return Call(
                    self.model, self.step, Op(op), call, order, target, source,
                    Phase(phase) if phase in tuple(Phase) else Phase.FORWARD,
                    arguments, tuple(map(str, origins)), kernel,
                )  # fmt: skip
        raise self._error("a call", listed)

    def _form(self, listed: Any) -> FormFacts:
        match listed:
            case [str(slot), str(dtype), list(shape), list(stride), int(offset), str(device),
                  str(layout), str(kept), str(problem), str(seen_in), stored
                  ] if kept in tuple(Kept):  # fmt: skip
                return FormFacts(
                    slot, dtype, self._sizes(shape), self._sizes(stride), offset, device,
                    layout, Kept(kept), problem, seen_in, self._stored(stored),
                )  # fmt: skip
        raise self._error("a form", listed)

    def _stored(self, listed: Any) -> Stored | None:
        match listed:
            case None:
                return None
            case [str(dtype), list(shape), list(attributes)]:
                pairs = tuple((str(name), value) for name, value in attributes)
                return Stored(dtype, self._sizes(shape), pairs)
        raise self._error("a form", listed)

    def _sizes(self, sizes: list[Any]) -> tuple[int, ...]:
        if len(sizes) > 1024 or not all(type(size) is int and size >= 0 for size in sizes):
            raise self._error("a shape", sizes)
        return tuple(sizes)

    def _error(self, what: str, found: Any) -> ArchiveError:
        return ArchiveError(
            f"{self.path}: {what} should be here, not {str(found)[:80]!r}",
            hint="the index is damaged; dumpcmp audit says what is left of the part",
        )

    def check(self) -> None:
        """Raise where a row refers to a call, form or row that does not exist."""
        rows = self.rows[self.rows["call"] != ABSENT]
        limits = {"call": len(self.listed_calls), "form": len(self.listed_forms)}
        for column, limit in limits.items():
            if rows.size and int(rows[column].max()) >= limit:
                raise self._error(f"a {column} below {limit}", int(rows[column].max()))
        assert len(self.forms) == limits["form"] and len(self.ops) == limits["call"]


def read_index(file: PartFile) -> Contents | None:
    """The contents of a sealed part by its index; None where there is none yet."""
    root = dict(islice(hard_links(file, root_address(file)), 1))  # the index comes first
    if INDEX_GROUP not in root:
        return None
    links = dict(hard_links(file, root[INDEX_GROUP]))
    if links.keys() < set(INDEX_DATASETS):
        file.fail(root[INDEX_GROUP], "the index is not whole")
    contents = Contents(
        file.path,
        _read_rows(file, links["records"]),
        _read_list(file, links["calls"]),
        _read_list(file, links["forms"]),
        sealed=True,
    )
    contents.check()
    return contents


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
        file.fail(found.address, "a JSON list should be here")
    if not isinstance(listed, list):
        file.fail(found.address, "a JSON list should be here")
    return listed


assert len(FORM_FIELDS) == len(FormFacts.__dataclass_fields__)
