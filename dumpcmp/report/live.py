"""What a live page is told: the answer so far, and its rows a piece at a time."""

from __future__ import annotations

import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

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
_PAUSE = 0.01  # seconds, in which another thread takes the lock
_MOST_SEARCHES = 8  # that are kept
_NUMBER = {verdict: number for number, verdict in enumerate(Verdict)}
_SCRIPTS = ("model.js", "theme.js", "rows.js", "live.js")


def live_page() -> tuple[str, str]:
    """The page, which has no rows yet, and the policy that its answer's header states."""
    style, script = source_of("page.css"), script_of(_SCRIPTS)
    rest = "connect-src 'self'; frame-ancestors 'none'"
    parts = {"title": "dumpcmp", "style": style, "script": script, "payload": ""}
    text = put_together("live.html", {**parts, "head": '<link rel="icon" href="data:,">'})
    return text, f"{policy_of(style, script)}; {rest}"


class Texts:
    """What rows are searched by. Each text is there once: most calls are made in every step."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # of texts, in order
        self._steps, self._values = array("I"), array("I")  # each row's two texts
        self._verdicts = array("B")

    def __len__(self) -> int:
        return len(self._steps)

    def go_on(self, rows: Sequence[Row], seconds: float) -> bool:
        """Read for so long, and say whether all of `rows` are known. Rows are only added."""
        deadline = time.monotonic() + seconds
        for place in range(len(self), len(rows)):
            self._add(rows[place])
            if time.monotonic() > deadline:
                break
        return len(self) == len(rows)

    def _add(self, row: Row) -> None:
        key, mine = row.key, "" if row.target_key is None else row.target_key.op
        value = f"{key.op}#{key.call} {key.slot} {row.verdict} {row.reason} {row.source} {mine}"
        number = self._numbers.setdefault
        self._values.append(number(value.lower(), len(self._numbers)))
        self._steps.append(number(f"{key.model}[{key.step}]".lower(), len(self._numbers)))
        self._verdicts.append(_NUMBER[row.verdict])

    def places(self, verdicts: Collection[Verdict], words: Sequence[str], start: int) -> list[int]:
        """Where, from `start` on, rows have all `words`, and one of `verdicts` if any are given."""
        found = np.ones(len(self) - start, bool)
        if verdicts:
            wanted = [_NUMBER[verdict] for verdict in verdicts]
            found &= np.isin(np.array(self._verdicts[start:]), wanted)
        for word in words:
            has = np.fromiter((word in text for text in self._numbers), bool, len(self._numbers))
            found &= has[np.array(self._steps[start:])] | has[np.array(self._values[start:])]
        return list(map(int, np.flatnonzero(found) + start))


class Search:
    """The rows with some verdicts and words, found a stretch at a time: there may be millions."""

    def __init__(self, verdicts: Collection[Verdict], words: Sequence[str]) -> None:
        self._verdicts, self._words = verdicts, words
        self._rows: Sequence[Row] = ()
        self._num_rows = 0  # when `_rows` was chosen
        self._found = array("Q")  # places in all rows, where there are words
        self._seen = 0

    def go_on(self, rows: Sequence[Row], texts: Texts, seconds: float) -> bool:
        """Search for so long, and say whether all of `rows` are searched. Rows are only added."""
        if self._words:
            complete = texts.go_on(rows, seconds)
            self._rows = rows
            self._found.extend(texts.places(self._verdicts, self._words, self._seen))
            self._seen = len(texts)
            return complete
        if len(rows) != self._num_rows:
            self._rows = having(rows, *self._verdicts) if self._verdicts else rows
            self._num_rows = len(rows)
        return True

    def __len__(self) -> int:
        return len(self._found) if self._words else len(self._rows)

    def piece(self, offset: int, limit: int) -> list[Row]:
        """Some of the rows that are found so far."""
        places = range(offset, min(offset + limit, len(self)))
        return [self._rows[self._found[place] if self._words else place] for place in places]


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
        self._texts = Texts()
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
            self._texts = Texts()
            self._searches.clear()
            self._roots = list(outcome.roots[:MOST_ROOTS])
            self._tally = Counter(_counts(outcome))
            self._has_ended = True

    def prepare(self) -> None:
        """Read what searches need, in stretches between the answers to others."""
        complete = False
        while not complete:
            with self._lock:
                complete = self._texts.go_on(self._rows, SEARCH_SECONDS)
            time.sleep(_PAUSE)

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
            complete = search.go_on(self._rows, self._texts, SEARCH_SECONDS)
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
