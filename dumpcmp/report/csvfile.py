"""The report as a table: CSV with documented columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from dumpcmp.nouns.columns import (
    COLUMNS,
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
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Metrics, Row
from dumpcmp.nouns.rows import Rows
from dumpcmp.report.escaping import as_cell


def write_csv(outcome: Outcome, path: Path) -> Path:
    """Write one line for each row, in execution order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        names = headings(outcome.rows)
        writer = csv.writer(file)
        writer.writerow(map(as_cell, names))
        equals = _EqualLines(names[len(COLUMNS) :])
        others = _Lines(names[len(COLUMNS) :])
        for rows in outcome.rows.chunks() if isinstance(outcome.rows, Rows) else [outcome.rows]:
            if isinstance(rows, EqualRows):
                told = enumerate(rows.facts())
                file.writelines(equals.line(rows, at, rows.step, facts) for at, facts in told)
                continue
            for at, row in enumerate(rows):
                if (facts := facts_of(row)) is not None:
                    file.write(equals.line(rows, at, row.key.step, facts))
                else:
                    file.write(others.line(row))
    return path


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
            step, count, nans, nans, infs, infs, shape, shape,
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
_FILLED_IN = {*_COUNTS, *(f"{side}_{name}" for side in ("golden", "my") for name in _EXTENT)}
_BLANKS = {at: one.name for at, one in enumerate(COLUMNS) if one.name in _FILLED_IN}

_escaped = lru_cache(4096)(as_cell)  # the same names come again and again
