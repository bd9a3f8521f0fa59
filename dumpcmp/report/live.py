"""What a live page is told: the answer so far, and its rows a piece at a time."""

from __future__ import annotations

import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import FAILING, Row, Verdict
from dumpcmp.nouns.rows import Rows, having
from dumpcmp.nouns.version import __version__
from dumpcmp.report.advice import next_commands
from dumpcmp.report.jsonfile import row_as_json
from dumpcmp.report.page import policy_of, put_together, script_of, source_of

MOST_AT_ONCE = 500  # rows in one answer
MOST_ROOTS = 50  # that the page names; the table has all
SEARCH_SECONDS = 0.2  # in one answer; the page asks again for what is left
_MOST_SEARCHES = 8  # that are kept
_MOST_KEPT = 1000  # rows of one search that stay in memory
_SCRIPTS = ("model.js", "live.js")


def live_page() -> tuple[str, str]:
    """The page, which has no rows yet, and the policy that its answer's header states."""
    style, script = source_of("page.css"), script_of(_SCRIPTS)
    rest = "connect-src 'self'; frame-ancestors 'none'"
    text = put_together("live.html", {"style": style, "script": script})
    return text, f"{policy_of(style, script)}; {rest}"


class Search:
    """The rows with some verdicts and words, found a stretch at a time: there may be millions."""

    def __init__(self, verdicts: Collection[Verdict], words: Sequence[str]) -> None:
        self._verdicts, self._words = verdicts, words
        self._among: Sequence[Row] = ()
        self._num_rows = 0  # when `_among` was chosen
        self._found = array("Q")  # places in `_among`
        self._first: list[Row] = []  # that were found: each that lies in a file costs a chunk
        self._seen = 0

    def go_on(self, rows: Sequence[Row], seconds: float) -> bool:
        """Search for so long, and say whether all of `rows` are searched. Rows are only added."""
        if len(rows) != self._num_rows:
            self._among = having(rows, *self._verdicts) if self._verdicts else rows
            self._num_rows = len(rows)
        deadline = time.monotonic() + seconds
        while self._words and self._seen < len(self._among):
            row = self._among[self._seen]
            if _has(row, self._words):
                self._found.append(self._seen)
                self._first += [row] if len(self._first) < _MOST_KEPT else []
            self._seen += 1
            if time.monotonic() > deadline:
                break
        return not self._words or self._seen == len(self._among)

    def __len__(self) -> int:
        return len(self._found) if self._words else len(self._among)

    def piece(self, offset: int, limit: int) -> list[Row]:
        """Some of the rows that are found so far."""
        return [self._at(place) for place in range(offset, min(offset + limit, len(self)))]

    def _at(self, place: int) -> Row:
        if place < len(self._first):
            return self._first[place]
        return self._among[self._found[place] if self._words else place]


def _has(row: Row, words: Sequence[str]) -> bool:
    mine = "" if row.target_key is None else row.target_key.op
    text = f"{row.key} {row.verdict} {row.reason} {row.source} {mine}".lower()
    return all(word in text for word in words)


def _verdicts_named(name: str) -> Collection[Verdict]:
    """None of them stands for any verdict."""
    if name in ("", "failing"):
        return FAILING if name else ()
    if name not in {verdict.value for verdict in Verdict}:
        raise SelectionError(f"there is no verdict {name!r}", hint="name one, or failing")
    return (Verdict(name),)


class LiveView:
    """What is known of a comparison while it goes on, and in the end. Threads may share it."""

    def __init__(self, golden: Path, mine: Path) -> None:
        self._lock = Lock()
        self._paths = {"golden": str(golden), "mine": str(mine)}
        self._generation = 0  # of the rows: they are others, where this is another
        self._rows: Sequence[Row] = Rows()
        self._searches: OrderedDict[tuple[str, str], Search] = OrderedDict()
        self._first: Outcome | None = None  # the first that is not the same, or the last one
        self._roots: list[Row] = []
        self._tally: Counter[str] = Counter()
        self._has_ended = False
        self._progress = (0, 0)

    def progress(self, done: int, total: int) -> None:
        """So many bytes of so many are measured."""
        self._progress = done, total

    def add(self, _steps: list[int], outcome: Outcome) -> None:
        """Add what some steps came to, of a run that goes on."""
        with self._lock:
            assert isinstance(self._rows, Rows)
            rows = outcome.rows
            for some in rows.chunks() if isinstance(rows, Rows) else [rows]:
                self._rows.extend(some)
            self._roots += outcome.roots[: MOST_ROOTS - len(self._roots)]
            self._tally.update(_counts(outcome))
            if self._first is None or not self._first.failures:
                self._first = outcome

    def finish(self, outcome: Outcome) -> None:
        """Put the whole comparison in the place of what was added."""
        with self._lock:
            self._generation += 1
            self._rows, self._first = outcome.rows, outcome
            self._searches.clear()
            self._roots = list(outcome.roots[:MOST_ROOTS])
            self._tally = Counter(_counts(outcome))
            self._has_ended = True

    def state(self) -> dict[str, Any]:
        """All but the rows, as JSON."""
        with self._lock:
            outcome, ended = self._first, self._has_ended
            whole = outcome if ended else None  # not its truth, which is whether it passes
            word = "comparing" if outcome is None else outcome.word
            return {
                "dumpcmp": __version__,
                "generation": self._generation,
                "has_ended": ended,
                "progress": list(self._progress),
                "runs": self._paths,
                "word": word if ended or outcome is None else f"so far: {word}",
                "exit_code": None if outcome is None else outcome.exit_code,
                "tally": dict(self._tally),
                "num_rows": len(self._rows),
                "roots": [row_as_json(row) for row in self._roots],
                "remarks": [] if whole is None else list(whole.remarks),
                "next": [] if whole is None else list(next_commands(whole)),
            }

    def rows(self, offset: int, limit: int, verdict: str = "", text: str = "") -> dict[str, Any]:
        """At most `limit` rows from `offset` on, of those with `verdict` and the words of `text`.

        Where the search is not complete, `total` is how many it has found so far.
        """
        if offset < 0 or limit < 0:
            raise SelectionError(f"there are no rows from {offset} on, {limit} of them")
        with self._lock:
            search = self._search(verdict, text)
            complete = search.go_on(self._rows, SEARCH_SECONDS)
            rows = search.piece(offset, min(limit, MOST_AT_ONCE))
            total, generation = len(search), self._generation
        return {
            "generation": generation, "offset": offset, "total": total, "complete": complete,
            "rows": [_filled(row) for row in rows],
        }  # fmt: skip

    def _search(self, verdict: str, text: str) -> Search:
        """The search for these, which goes on where it was left."""
        asked = verdict, text
        if asked not in self._searches:
            words = text.lower().split()
            self._searches[asked] = Search(_verdicts_named(verdict), words)
            if len(self._searches) > _MOST_SEARCHES:
                self._searches.popitem(last=False)
        self._searches.move_to_end(asked)
        return self._searches[asked]


def _counts(outcome: Outcome) -> dict[str, int]:
    return {verdict.value: count for verdict, count in outcome.tally.counts.items()}


def _filled(row: Row) -> dict[str, Any]:
    """The cells of a row that are not empty."""
    return {name: cell for name, cell in row_as_json(row).items() if cell not in (None, "")}
