"""Gathers what a report shows besides the rows: both runs, the data flow, code, closer looks."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing.both_sides import sides_of
from dumpcmp.comparing.closeup import close_up
from dumpcmp.comparing.dataflow import DataFlow
from dumpcmp.comparing.laying import Job, Task
from dumpcmp.nouns.background import Arrow, Background, CloseUp, Excerpt, RunTold
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.options import readable
from dumpcmp.nouns.row import Pair, Row
from dumpcmp.nouns.selection import names_key

USUAL_CLOSE_UPS = 24  # rows that a report looks at closely
MOST_BYTES = 256 << 20  # to read for closer looks
LARGEST = 32 << 20  # bytes of one value that is looked at
MOST_ARROWS = 200_000  # of the data flow
_AROUND = 4  # lines of code before and after the one that is meant
_MOST_CODE = 1 << 20  # bytes of a source file that is worth reading
RowRank = tuple[int, float]  # of a row: those come first that a reader looks for

_UNTOLD = frozenset(("seen", "certificate", "remarks"))  # of run.json: counts, and what is a remark


def badness(row: Row) -> float:
    """How far a row is from what is admissible, for an order of rows."""
    if row.metrics is None or math.isnan(row.metrics.rel_l2):
        return math.inf if row.verdict.fails else 0.0
    limit = row.judgement.limit
    return row.metrics.rel_l2 / limit if limit > 0 else row.metrics.rel_l2


@dataclass(slots=True, eq=False)
class Showing:
    """Gathers the background of an outcome, span by span; what costs only if it is asked for."""

    closely: int | str  # so many rows are looked at closely, or those of a name
    arrows: list[Arrow] = field(default_factory=list)
    close_ups: list[tuple[RowRank, CloseUp]] = field(default_factory=list)
    excerpts: dict[str, Excerpt] = field(default_factory=dict)
    nbytes: int = 0  # read for closer looks
    first: Row | None = None  # the first divergence, unless rows of a name are asked for

    def add(
        self, rows: Sequence[Row], roots: Sequence[Row], flow: DataFlow,
        work: Mapping[Pair, Job], after: int,
    ) -> None:  # fmt: skip
        """Take what is to be shown of a span, whose rows come `after` so many others.

        `roots` are those of the rows, in the order in which they came about.
        """
        if not self.closely:
            return
        if self.first is None and isinstance(self.closely, int):
            self.first = next(iter(roots), None)
        places = {(row.golden_key, row.target_key): i for i, row in enumerate(rows)}
        known = ((places.get((pair.golden, pair.target)), pair) for pair in flow.pairs)
        pairs = {place: pair for place, pair in known if place is not None}
        room = MOST_ARROWS - len(self.arrows)
        self.arrows += islice(_arrows(flow, pairs, after), max(0, room))
        for place in self._chosen(rows):
            row, pair = rows[place], pairs.get(place)
            if one := self._look(place + after, row, pair, work):
                self.close_ups.append((self._rank(row), one))
        for row in rows:
            if row.root and row.source not in self.excerpts:
                self.excerpts |= {one.source: one for one in _excerpts(row.source)}

    def _chosen(self, rows: Sequence[Row]) -> list[int]:
        """The rows to look at, best first; a first divergence is one even where it has no numbers.

        A value that repeats is looked at once.
        """
        chosen = [i for i, row in enumerate(rows) if self._wants(row)]
        ranked = sorted(chosen, key=lambda i: self._rank(rows[i]))
        if isinstance(self.closely, str):
            return ranked[:USUAL_CLOSE_UPS]
        once = {id(rows[i].metrics or rows[i]): i for i in reversed(ranked)}
        return [i for i in ranked if once[id(rows[i].metrics or rows[i])] == i][: self.closely]

    def _wants(self, row: Row) -> bool:
        if row is self.first or row.metrics is None or row.metrics.equal:
            return row is self.first
        return isinstance(self.closely, int) or names_key(row.key, self.closely)

    def _rank(self, row: Row) -> RowRank:
        """Of rows of a name what was computed and fails; else the first divergence, then roots.

        What is farthest from what is admissible comes first among rows of a kind.
        """
        if row is self.first:
            return 0, 0.0
        if isinstance(self.closely, str):
            return 2 * row.key.slot.is_input + (not row.verdict.fails), 0.0
        return 1 + (not row.root), -badness(row)

    def _look(
        self, number: int, row: Row, pair: Pair | None, work: Mapping[Pair, Job]
    ) -> CloseUp | None:
        task = work.get(pair.repeats or pair) if pair else None
        is_first = row is self.first
        if not isinstance(task, Task) or row.metrics is None:
            return CloseUp(number, problem=_why_unread(row)) if is_first else None
        for shares in (task.golden, task.target):
            if shares.is_summarised:
                return CloseUp(number, problem=f"of it {shares.said_kept}")
        is_much = not is_first and self.nbytes + task.nbytes > MOST_BYTES
        if task.golden.nbytes > LARGEST or is_much:
            return CloseUp(number, problem=f"{readable(task.nbytes)} are more than a report reads")
        self.nbytes += task.nbytes
        return _close_up(number, task)

    def background(self, golden: Archive, target: Archive) -> Background:
        """All that is shown besides the rows."""
        number = self.closely if isinstance(self.closely, int) else USUAL_CLOSE_UPS
        best = sorted(self.close_ups, key=lambda one: (one[0], one[1].row))[:number]
        return Background(
            told_of(golden),
            told_of(target),
            tuple(self.arrows),
            tuple(one for _, one in best),
            tuple(self.excerpts.values()),
        )


def _why_unread(row: Row) -> str:
    """Why the elements of a first divergence cannot be held against each other."""
    if row.golden_key is None or row.target_key is None:
        return "only one side has it"
    if row.metrics is None:
        return "it was not measured"
    return "it is not one value of each side"


def told_of(archive: Archive) -> RunTold:
    """The facts of a run, by names such as ``versions.torch``."""
    facts = next(iter(archive.run.values()), {})
    stated = facts.get("run", {})
    told = dict(_flat("", {name: fact for name, fact in stated.items() if name not in _UNTOLD}))
    told["started"] = str(facts.get("started", ""))
    told["ranks"] = f"{len(archive.ranks)} of {archive.world_size}"
    told["complete"] = "yes" if archive.complete else "no"
    return RunTold(str(archive.path), tuple(told.items()))


def _flat(name: str, fact: Any) -> Iterator[tuple[str, str]]:
    if isinstance(fact, dict):
        for inner, value in fact.items():
            yield from _flat(f"{name}.{inner}" if name else str(inner), value)
    elif isinstance(fact, list):
        yield name, " ".join(map(str, fact))
    elif fact is not None:
        yield name, str(fact)


def _arrows(flow: DataFlow, pairs: Mapping[int, Pair], after: int) -> Iterator[Arrow]:
    """Which row each row is, or was computed from, where that is another call's."""
    places = {pair: place for place, pair in pairs.items()}
    for row, pair in pairs.items():
        ours, theirs = flow.taken_from(pair)
        for source in dict.fromkeys((*flow.sources[pair], ours, theirs)):
            if source is None or source not in places or source.key.site == pair.key.site:
                continue
            side = "both"
            if ours is not theirs and source in (ours, theirs) and pair.both:
                side = "golden" if source is ours else "mine"
            yield Arrow(row + after, places[source] + after, side)


def _close_up(row: int, task: Task) -> CloseUp:
    try:
        return close_up(row, *sides_of(task))
    except DumpcmpError as error:
        return CloseUp(row, problem=error.message)


def _excerpts(source: str) -> Iterator[Excerpt]:
    """The code around a line, if its file is found."""
    name, _, line = source.rpartition(":")
    path = _found(name) if line.isdecimal() else None
    if path is None or path.stat().st_size > _MOST_CODE:
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    first = max(0, int(line) - 1 - _AROUND)
    yield Excerpt(source, first + 1, tuple(lines[first : int(line) + _AROUND]))


def _found(name: str) -> Path | None:
    """The file of a source, whose name has the end of its path: here, or where Python looks.

    An archive says which, and may say anything: only files of Python code are looked at that lie
    below these places.
    """
    parts = Path(name).parts
    if not name.endswith(".py") or ".." in parts or Path(name).is_absolute():
        return None
    here = [Path(name)]
    places = (Path(place, *parts[k:]) for place in sys.path for k in range(1, len(parts)))
    ends = f"/{name}"
    return next((p for p in chain(here, places) if p.is_file() and _ends_so(p, ends)), None)


def _ends_so(path: Path, ends: str) -> bool:
    return path.resolve().as_posix().endswith(ends)
