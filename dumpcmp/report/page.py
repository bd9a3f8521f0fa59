"""The report as one HTML file: the sources in `html/`, and the outcome, compressed, inside."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
import operator
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from dumpcmp.nouns.files import write_whole
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import FAILING, Row
from dumpcmp.report.earlier import Earlier
from dumpcmp.report.escaping import visible
from dumpcmp.report.jsonfile import row_as_json, without_rows

MOST_ROWS = 20_000  # that a page has one by one; the rest is summed up, and it is said
_MOST_ARROWS = 60_000
_DIGITS = 6  # of a number
_SCRIPTS = (
    "model.js", "theme.js", "colours.js", "answer.js", "before.js", "curve.js", "map.js",
    "closeup.js", "flow.js", "graph.js", "rows.js", "table.js", "facts.js", "main.js",
)  # fmt: skip
_MARK = re.compile(r"@@(\w+)@@")
_POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)


def write_html(outcome: Outcome, path: Path, *, before: Outcome | None = None) -> Path:
    """Write the page of `outcome`, with mine as it was `before` beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page_text(outcome, before))
    return path


def page_text(outcome: Outcome, before: Outcome | None = None) -> str:
    """The page of `outcome`, with mine as it was `before` beside it."""
    told = without_rows(outcome)
    if before is None:
        return page_of(told, CellRows(outcome.rows))
    earlier = Earlier(before, outcome)
    return page_of(told | {"before": earlier.as_json()}, earlier)


class CellRows:
    """The rows of an outcome as JSON has them, read anew each time: there may be many."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(row_as_json, self._rows)

    def __len__(self) -> int:
        return len(self._rows)


Cells = CellRows | Earlier | Sequence[dict[str, Any]]


def page_of(told: Mapping[str, Any], rows: Cells) -> str:
    """The page of a report that is known as JSON. Nothing of it is markup: it lies there packed."""
    return assembled("page.html", _SCRIPTS, str(told["word"]), payload_of(told, rows))


def assembled(source: str, scripts: Sequence[str], word: str, payload: Mapping[str, Any]) -> str:
    """The HTML `source` with its style, its `scripts` and what they show, in one text."""
    style, script = source_of("page.css"), script_of(scripts)
    policy = policy_of(style, script)
    parts = {
        "head": f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "title": html.escape(visible(word)[:120]),
        "style": style,
        "script": script,
        "payload": f'<script type="application/gzip" id="payload">{_packed(payload)}</script>',
        "word": html.escape(visible(word)),  # for those who run no script
    }
    return put_together(source, parts)


def put_together(source: str, parts: Mapping[str, str]) -> str:
    """A page whose body is the HTML `source`, with `parts` where they are named."""

    def filled(name: str) -> str:
        return _MARK.sub(lambda mark: parts[mark[1]], source_of(name))

    parts = {**parts, "body": filled(source)}
    return filled("frame.html")


def script_of(names: Sequence[str]) -> str:
    """The scripts in files of `html/`, as one."""
    return "\n".join(map(source_of, names))


def policy_of(style: str, script: str) -> str:
    """The policy of a page that has this style and script, and nothing from anywhere else."""
    return _POLICY.format(script=_digest(script), style=_digest(style))


def source_of(name: str) -> str:
    """The text of a file of `html/`."""
    return (files("dumpcmp.report") / "html" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _packed(payload: Mapping[str, Any]) -> str:
    written = json.dumps(payload, separators=(",", ":"), allow_nan=False)
    octets = written.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
    return base64.b64encode(gzip.compress(octets, 6, mtime=0)).decode()


def payload_of(told: Mapping[str, Any], rows: Cells, most: int = MOST_ROWS) -> dict[str, Any]:
    """What the page is given: the report, its rows column by column, the rest of them summed up."""
    kept = chosen_rows(rows, most)
    places = {row: place for place, row in enumerate(kept)}
    shown = [row for place, row in enumerate(rows) if place in places]
    besides = {name: fact for name, fact in told.items() if name not in ("rows", "roots")}
    close_ups = [
        one | {"row": places[one["row"]]} for one in told["close_ups"] if one["row"] in places
    ]
    arrows = [
        [places[row], places[source], side]
        for row, source, side in told["arrows"]
        if row in places and source in places
    ]
    return besides | {
        "num_rows": len(rows),
        "first": _first(told["first_divergence"], shown),
        "positions": kept if len(kept) < len(rows) else None,
        "columns": _columns(shown),
        "rest": _rest(rows, places) if len(kept) < len(rows) else [],
        "close_ups": close_ups,
        "arrows": arrows[:_MOST_ARROWS],
    }


def _first(first: Mapping[str, Any] | None, rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Which of `rows` the first divergence is."""
    name = operator.itemgetter("model", "token", "op", "call", "slot", "root")
    found = (place for place, row in enumerate(rows) if first and name(row) == name(first))
    return next(found, None)


def chosen_rows(rows: Cells, most: int = MOST_ROWS) -> list[int]:
    """The rows that a page has one by one, in order: if not all, roots, failures, the worst."""
    if len(rows) <= most:
        return list(range(len(rows)))
    ranked = sorted((_rank(row), place) for place, row in enumerate(rows))
    return sorted(place for _, place in ranked[:most])


def _rank(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
    return not row["root"], row["verdict"] not in FAILING, -_error(row)


def _error(row: Mapping[str, Any]) -> float:
    """How far a row is off, in units of what is admissible where that is known."""
    error, limit = row["rel_l2"], row["tolerance"]
    if error is None or isinstance(error, str):
        return math.inf if error else 0.0
    return error / limit if isinstance(limit, float) and limit > 0 else float(error)


def _rest(rows: Cells, kept: Mapping[int, int]) -> list[dict[str, Any]]:
    """The rows that the page does not have, summed up for each token and layer."""
    groups: dict[tuple[str, int, str], dict[str, Any]] = {}
    for place, row in enumerate(rows):
        if place not in kept:
            name = row["model"], row["token"], layer_of(row["op"])
            group = groups.setdefault(name, _group(*name, place))
            group["last"], group["number"] = place, group["number"] + 1
            group["tally"][row["verdict"]] += 1
            error = _error(row)
            if math.isfinite(error):
                group["worst"] = _short(max(group["worst"], error))
    return list(groups.values())


def _group(model: str, token: int, layer: str, first: int) -> dict[str, Any]:
    return {
        "model": model, "token": token, "layer": layer, "first": first, "last": first,
        "number": 0, "tally": Counter(), "worst": 0.0,
    }  # fmt: skip


def layer_of(op: str) -> str:
    """The numbered module that an op is in, or else the outermost one."""
    name = Op(op)
    return name.block or name.module.partition(".")[0]


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows as columns: of texts each is there once, of numbers a few digits; empty ones are not."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {
        name: _column(cells)
        for name, cells in columns.items()
        if any(cell is not None and cell != "" for cell in cells)
    }


def _column(cells: Sequence[Any]) -> dict[str, Any]:
    if not any(isinstance(cell, str) for cell in cells):
        return {"numbers": [_short(cell) if isinstance(cell, float) else cell for cell in cells]}
    words = {cell: place for place, cell in enumerate(dict.fromkeys(cells))}
    if all(cell is None or cell in ("inf", "-inf") or not isinstance(cell, str) for cell in cells):
        return {"numbers": [_short(cell) if isinstance(cell, float) else cell for cell in cells]}
    return {"words": list(words), "at": [words[cell] for cell in cells]}


def _short(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")
