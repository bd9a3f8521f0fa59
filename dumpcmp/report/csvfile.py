"""The report as a table: CSV with documented columns."""

from __future__ import annotations

import csv
from pathlib import Path

from dumpcmp.nouns.columns import Cell, cells, headings
from dumpcmp.nouns.files import replacing
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.report.escaping import as_cell


def write_csv(outcome: Outcome, path: Path) -> Path:
    """Write one line for each row, in execution order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        names = headings(outcome.rows)
        lines.writerow(map(as_cell, names))
        for row in outcome.rows:
            found = cells(row)
            lines.writerow(_in_csv(found.get(name)) for name in names)
    return path


def _in_csv(cell: Cell) -> Cell:
    if cell is None:
        return ""
    return as_cell(cell) if isinstance(cell, str) else cell
