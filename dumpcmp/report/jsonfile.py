"""The report as JSON: all that is known of an outcome; docs/report.schema.json has its form."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dumpcmp.nouns.background import Background
from dumpcmp.nouns.columns import Cell, cells
from dumpcmp.nouns.files import replacing
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row
from dumpcmp.nouns.version import __version__
from dumpcmp.report.advice import next_commands
from dumpcmp.report.kernel_sources import kernels_of

# `indent` is for Python's own encoder alone, which takes twice as long. A cell holds no others.
_ROW = json.JSONEncoder(allow_nan=False, separators=(",\n   ", ": "))
JSON_VERSION = 3  # any change to the keys below bumps it


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
    begun = json.dumps(without_rows(outcome), indent=1, allow_nan=False)
    lists = {"roots": outcome.roots, "rows": outcome.rows}
    yield begun.removesuffix("\n}")
    for name, rows in lists.items():
        yield f',\n "{name}": ['
        for number, row in enumerate(rows):
            yield f"{',' if number else ''}\n  {{\n   {_ROW.encode(row_as_json(row))[1:-1]}\n  }}"
        yield "\n ]" if len(rows) else "]"
    yield "\n}"


def without_rows(outcome: Outcome) -> dict[str, Any]:
    """What was found, in words and numbers of JSON."""
    first = outcome.first_divergence
    return {
        "version": JSON_VERSION,
        "dumpcmp": __version__,
        "exit_code": outcome.exit_code,
        "conclusion": outcome.conclusion.value,
        "word": outcome.word,
        "tally": {verdict.value: count for verdict, count in outcome.tally.counts.items()},
        "first_divergence": row_as_json(first) if first else None,
        "remarks": list(outcome.remarks),
        "next": [{"command": command, "why": why} for command, why in next_commands(outcome)],
        **_background(outcome.background),
        "kernels": [one._asdict() for one in kernels_of(outcome)],
    }


def as_json(outcome: Outcome) -> dict[str, Any]:
    """All of it, rows too."""
    lists = {"roots": outcome.roots, "rows": outcome.rows}
    told = {name: [row_as_json(row) for row in rows] for name, rows in lists.items()}
    return without_rows(outcome) | told


def _background(background: Background) -> dict[str, Any]:
    runs = {"golden": background.golden, "mine": background.target}
    return {
        "runs": {
            side: {"path": told.path, "facts": dict(told.facts)} for side, told in runs.items()
        },
        "arrows": [list(arrow) for arrow in background.arrows],
        "close_ups": [_spelled_deep(asdict(one)) for one in background.close_ups],
        "excerpts": [one._asdict() for one in background.excerpts],
    }


def row_as_json(row: Row) -> dict[str, Cell]:
    """A row by its columns."""
    return {name: spelled(cell) for name, cell in cells(row).items()}


def spelled(cell: Cell) -> Cell:
    """JSON has no NaN and no infinity: null and a word stand for them."""
    if not isinstance(cell, float) or math.isfinite(cell):
        return cell
    return None if math.isnan(cell) else str(cell)


def _spelled_deep(found: Any) -> Any:
    if isinstance(found, tuple) and hasattr(found, "_asdict"):
        found = found._asdict()
    if isinstance(found, dict):
        return {name: _spelled_deep(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [_spelled_deep(value) for value in found]
    return spelled(found)
