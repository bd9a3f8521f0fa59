"""The report as a table: CSV with documented columns."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from dumpcmp.nouns.columns import COLUMNS, TEXTS, Cell, headings, line_of
from dumpcmp.nouns.files import replacing
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row
from dumpcmp.report.escaping import as_cell


def write_csv(outcome: Outcome, path: Path) -> Path:
    """Write one line for each row, in execution order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        names = headings(outcome.rows)
        lines.writerow(map(as_cell, names))
        own = names[len(COLUMNS) :]
        lines.writerows(_in_csv(row, own) for row in outcome.rows)
    return path


def _in_csv(row: Row, own: Sequence[str]) -> list[Cell]:
    found = line_of(row)
    for at in TEXTS:
        if isinstance(cell := found[at], str):
            found[at] = _escaped(cell)
    if own:
        numbers = dict(row.own)
        found += [numbers.get(name) for name in own]
    return found


_escaped = lru_cache(4096)(as_cell)  # the same names come again and again
