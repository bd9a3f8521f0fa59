"""Holds the index of a sealed part against its journal, whose records have checksums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from dumpcmp.archive.read.contents import LISTED_LOST, Contents
from dumpcmp.archive.read.partfile import PartFile
from dumpcmp.archive.read.scan import record_at, scan
from dumpcmp.archive.schema import (
    ABSENT,
    CALL_FIELDS,
    FORM_FIELDS,
    INDEX_COLUMNS,
    JOURNAL_AT,
    LOST_FORM,
    NO_ROW,
)

_COLUMNS = tuple(name for name, _, _ in INDEX_COLUMNS)
_OF_LINK = _COLUMNS.index("same") + 1  # columns that a link's record tells
_of_form = attrgetter(*FORM_FIELDS)


def clashes(file: PartFile, contents: Contents) -> Iterator[str]:
    """What the index says otherwise than the journal. A dense part has no second copy of it.

    Records that the journal has no longer, torn by a crash that was repaired, say nothing.
    """
    if record_at(file, JOURNAL_AT, None) is None:
        return  # another tool has rewritten the part, and left the journal out
    journal = scan(file, [])
    ours, theirs = contents.listed_calls, journal.listed_calls
    known = [None if call == LISTED_LOST else call for call in theirs]
    yield from _differing("call", CALL_FIELDS, ours, known)
    forms = [None if form == LOST_FORM else _of_form(form) for form in journal.forms]
    yield from _differing("form", FORM_FIELDS, list(map(_of_form, contents.forms)), forms)
    rows = list(map(_told, journal.rows.tolist()))
    yield from _differing("row", _COLUMNS, contents.rows.tolist(), rows)


def _told(row: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What a journal tells of a row: of a link not where the bytes are; None of one it lost."""
    call, _, _, _, same, *_ = row
    if call == ABSENT:
        return None
    return row if same == NO_ROW else row[:_OF_LINK]


def _differing(
    what: str, names: Sequence[str], index: Sequence[Any], journal: Sequence[Any]
) -> Iterator[str]:
    if len(index) < len(journal):
        yield f"the index ends before {what} {len(index)}, which its journal has"
    for number, (ours, theirs) in enumerate(zip(index, journal, strict=False)):
        if theirs is None or ours == theirs:
            continue
        for name, here, there in zip(names, ours, theirs, strict=False):
            if repr(here) != repr(there):  # a NaN is itself
                told = f"{name} {_short(here)}, its journal {_short(there)}"
                yield f"{what} {number} of the index has {told}"


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 80 else f"{said[:77]}..."
