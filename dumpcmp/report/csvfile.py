"""The report as a table: CSV with documented columns."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TextIO

from dumpcmp.nouns.columns import (
    COLUMNS,
    READ_FIRST,
    TEXTS,
    Cell,
    headings,
    in_order,
    line_of,
    metrics_cells,
    other_cells,
    shape_text,
)
from dumpcmp.nouns.equal_rows import EqualRows, ValueFacts, facts_of
from dumpcmp.nouns.files import replacing
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Metrics, Row, Verdict
from dumpcmp.nouns.rows import Rows
from dumpcmp.report.escaping import as_cell


def write_csv(
    outcome: Outcome, path: Path, *, per_op: bool = False, all_columns: bool = True
) -> Path:
    """Write one line for each row, in execution order.

    With `per_op`, one for each call of an op: that of its worst value. Without `all_columns`, those
    that are empty in every line are left out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = worst_of_each(outcome.rows) if per_op else outcome.rows
    with replacing(path) as draft:
        with draft.open("w", newline="", encoding="utf-8") as file:
            _write(rows, headings(outcome.rows), file)
        if not all_columns:
            _leave_out_empty(draft)
    return path


def _write(rows: Sequence[Row], names: Sequence[str], file: TextIO) -> None:
    csv.writer(file).writerow(map(as_cell, names))
    equals = _EqualLines(names[len(COLUMNS) :])
    others = _Lines(names[len(COLUMNS) :])
    for some in rows.chunks() if isinstance(rows, Rows) else [rows]:
        if isinstance(some, EqualRows):
            told = enumerate(some.facts())
            file.writelines(equals.line(some, at, some.step, facts) for at, facts in told)
            continue
        for at, row in enumerate(some):
            if (facts := facts_of(row)) is not None:
                file.write(equals.line(some, at, row.key.step, facts))
            else:
                file.write(others.line(row))


def worst_of_each(rows: Iterable[Row]) -> list[Row]:
    """Of each call of an op the row of its worst value: what fails, then what is farthest off."""
    found: dict[Site, Row] = {}
    for row in rows:
        other = found.get(row.key.site)
        if other is None or _badness(row) > _badness(other):
            found[row.key.site] = row
    return list(found.values())


def _badness(row: Row) -> tuple[bool, bool, float, bool]:
    """How bad a row is; between equals, what an op gives says more than what it was given."""
    far = row.metrics.rel_l2 if row.metrics is not None else math.nan
    is_open = row.verdict is not Verdict.PASS
    is_output = not row.key.slot.is_input
    return row.verdict.fails, is_open, 0.0 if math.isnan(far) else far, is_output


def _leave_out_empty(draft: Path) -> None:
    """Write the table once more, without columns that are empty in every line."""
    with draft.open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        width = len(next(lines))
        filled = {at for line in lines for at in range(width) if line[at]}
    kept = [at for at in range(width) if at in filled or at < READ_FIRST]
    if len(kept) == width:
        return
    narrow = draft.with_suffix(".narrow")
    with (
        draft.open(newline="", encoding="utf-8") as file,
        narrow.open("w", newline="", encoding="utf-8") as other,
    ):
        csv.writer(other).writerows([line[at] for at in kept] for line in csv.reader(file))
    narrow.replace(draft)


@dataclass(slots=True, eq=False)
class _EqualLines:
    """Writes lines of values that are the same on both sides: most of each was written before."""

    own: Sequence[str]  # columns
    known: dict[object, str] = field(default_factory=dict)  # lines with blanks for numbers

    def line(self, rows: Sequence[Row], at: int, step: int, facts: ValueFacts) -> str:
        """The line of the row at `at`, of which `facts` tell."""
        name, sizes, (count, _, low, high, mean, norm, nans, infs) = facts
        kind = name, low < high, norm == 0
        line = self.known.get(kind)
        if line is None:
            if len(self.known) >= _MOST_KNOWN:
                self.known.clear()
            line = self.known[kind] = _with_blanks(_in_csv(rows[at], self.own))
        shape = shape_text(sizes)
        return line % (
            step, shape, count, nans, nans, infs, infs, shape, shape,
            low, high, mean, norm, low, high, mean, norm,
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class _Lines:
    """Writes lines as csv.writer does; what Metrics tell is told once for all rows that have them.

    A value that is handed on has a row wherever it appears, and the same Metrics in each.
    """

    own: Sequence[str]  # columns
    told: dict[int, tuple[Metrics | None, list[str]]] = field(default_factory=dict)  # by identity

    def line(self, row: Row) -> str:
        """The line of a row."""
        cells = in_order(self._metrics(row) + _texts(other_cells(row)))
        if self.own:
            numbers = dict(row.own)
            cells = (*cells, *_texts(numbers.get(name) for name in self.own))
        return ",".join(cells) + "\r\n"

    def _metrics(self, row: Row) -> list[str]:
        metrics = row.metrics
        found = self.told.get(id(metrics))
        if found is not None and found[0] is metrics:
            return found[1]
        if len(self.told) >= _MOST_TOLD:
            self.told.clear()
        texts = _texts(metrics_cells(row))
        self.told[id(metrics)] = metrics, texts  # kept, so that its number is no other's
        return texts


def _texts(cells: Iterable[Cell]) -> list[str]:
    """Cells as csv.writer writes them, quoted where they must be."""
    return [
        "" if cell is None else _quoted(cell) if isinstance(cell, str) else str(cell)
        for cell in cells
    ]


@lru_cache(4096)  # the same names come again and again
def _quoted(text: str) -> str:
    room = io.StringIO()
    csv.writer(room).writerow((as_cell(text), ""))
    return room.getvalue().removesuffix(",\r\n")


def _with_blanks(cells: list[Cell]) -> str:
    """A line of the file, to be filled in where numbers are told of single values."""
    told = [cell.replace("%", "%%") if isinstance(cell, str) else cell for cell in cells]
    for at, column in _BLANKS.items():
        told[at] = "%d" if column in _COUNTS else "%s"
    room = io.StringIO()
    csv.writer(room).writerow(told)
    return room.getvalue()


def _in_csv(row: Row, own: Sequence[str]) -> list[Cell]:
    found = line_of(row)
    for at in TEXTS:
        if isinstance(cell := found[at], str):
            found[at] = _escaped(cell)
    if own:
        numbers = dict(row.own)
        found += [numbers.get(name) for name in own]
    return found


_MOST_KNOWN = 1 << 14  # lines with blanks
_MOST_TOLD = 256  # Metrics: a value is handed on soon or not at all
_COUNTS = ("token", "count", "golden_nan", "my_nan", "golden_inf", "my_inf")
_EXTENT = ("shape", "min", "max", "mean", "norm")
_FILLED_IN = {
    *_COUNTS,
    "shape",
    *(f"{side}_{name}" for side in ("golden", "my") for name in _EXTENT),
}
_BLANKS = {at: one.name for at, one in enumerate(COLUMNS) if one.name in _FILLED_IN}

_escaped = lru_cache(4096)(as_cell)  # the same names come again and again
