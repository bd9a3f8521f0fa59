"""The report as files: CSV with documented columns, and JSON of the same."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dumpcmp.nouns.columns import Cell, cells, headings
from dumpcmp.nouns.files import replacing
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row
from dumpcmp.report.escaping import as_cell

JSON_VERSION = 1  # any change to the keys below bumps it


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


def write_json(outcome: Outcome, path: Path) -> Path:
    """Write the outcome: what was found first, then all rows. Numbers that JSON lacks are null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path) as draft,
        draft.open("w", encoding="utf-8", errors="surrogatepass") as file,
    ):
        file.writelines(json_lines(outcome))
    return path


def json_lines(outcome: Outcome) -> Iterator[str]:
    """The outcome as JSON, a piece at a time: rows there may be by the million."""
    begun = json.dumps(_without_rows(outcome), indent=1, allow_nan=False)
    lists = {"roots": outcome.roots, "rows": outcome.rows}
    yield begun.removesuffix("\n}")
    for name, rows in lists.items():
        yield f',\n "{name}": ['
        for number, row in enumerate(rows):
            cell = json.dumps(_row(row), indent=1, allow_nan=False).replace("\n", "\n  ")
            yield f"{',' if number else ''}\n  {cell}"
        yield "\n ]" if len(rows) else "]"
    yield "\n}"


def _without_rows(outcome: Outcome) -> dict[str, Any]:
    """What was found, in words and numbers of JSON."""
    first = outcome.first_divergence
    return {
        "version": JSON_VERSION,
        "exit_code": outcome.exit_code,
        "tally": {verdict.value: count for verdict, count in outcome.tally.counts.items()},
        "first_divergence": _row(first) if first else None,
        "remarks": list(outcome.remarks),
    }


def _row(row: Row) -> dict[str, Cell]:
    return {name: _spelled(cell) for name, cell in cells(row).items()}


def _spelled(cell: Cell) -> Cell:
    """JSON has no NaN and no infinity: null and a word stand for them."""
    if not isinstance(cell, float) or math.isfinite(cell):
        return cell
    return None if math.isnan(cell) else str(cell)
