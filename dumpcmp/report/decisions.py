"""What a comparison says of choices: who took what instead of what, and how much came of it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dumpcmp.nouns.key import Site
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.replay import Choice, Flip
from dumpcmp.nouns.row import Row, Verdict
from dumpcmp.nouns.rows import Trait, having, marked
from dumpcmp.nouns.spoken import counted, plural

_ROUTES = re.compile(r"moe|expert|rout|gat(e|ing)\b", re.IGNORECASE)  # modules that send to experts
_MOST = 3  # of what a flip took that a sentence lists


@dataclass(frozen=True, slots=True)
class Decision:
    """One op that chose otherwise than golden, and what follows from it."""

    site: Site
    choice: Choice
    num_rows: int = 0  # that are another computation after it, over all values
    num_values: int = 0  # in which they are
    num_wrong: int = 0  # of those values
    num_open: int = 0  # of those values that nobody could judge

    @property
    def sentences(self) -> Iterator[str]:
        """One for each flip that is known, and one for what came after."""
        for flip in self.choice.flips:
            yield f"{self._taken(flip)} at {self.site.op} ({_why(flip)})"
        more = self.choice.num_flipped - len(self.choice.flips)
        if more > 0:
            yield f"{counted(more, 'more row')} chose otherwise at {self.site.op}"
        if self.num_rows:
            rows, are = counted(self.num_rows, "row"), plural(self.num_rows, "is", "are")
            where = f"{rows} in {counted(self.num_values, 'value')} after it"
            yield f"{where} {are} another computation; {self._right}"

    @property
    def _right(self) -> str:
        if self.num_wrong:
            return f"{self.num_wrong} of the values {plural(self.num_wrong, 'is', 'are')} wrong"
        if self.num_open:
            return f"{self.num_open} of the values could not be judged, the others are right"
        return "every op among them is right"

    def _taken(self, flip: Flip) -> str:
        routes = bool(_ROUTES.search(self.site.op.scope))
        who, what = ("token", "expert ") if routes else ("row", "")
        row = str(flip.row[0]) if len(flip.row) == 1 else str(list(flip.row))
        if sorted(flip.target) == sorted(flip.golden):
            what = f"the order {what and 'of experts '}"
        return f"{who} {row} took {what}{_listed(flip.target)} instead of {_listed(flip.golden)}"


def _listed(taken: Sequence[int]) -> str:
    shown = ", ".join(map(str, taken[:_MOST]))
    return f"{shown}, ..." if len(taken) > _MOST else shown or "nothing"


def _why(flip: Flip) -> str:
    if flip.is_tie:
        return "a tie: the scores are equal"
    return f"margin {flip.margin:.2g}, noise {flip.noise:.2g}"


def decisions(outcome: Outcome) -> list[Decision]:
    """The ops that chose otherwise than golden, in order."""
    found: dict[Site, Choice] = {}
    after: dict[Site, Counter[str]] = defaultdict(Counter)
    for row in having(outcome.rows, Verdict.FLIP):
        if row.replay and row.replay.choice:
            found.setdefault(row.key.site, row.replay.choice)
    for row in marked(outcome.rows, Trait.TOUCHED) if found else ():
        _count(row, after)
    return [Decision(site, choice, **after[site]) for site, choice in found.items()]


def _count(row: Row, after: dict[Site, Counter[str]]) -> None:
    """Count a row that another choice led to, for the op that made it."""
    touched, key = row.touched, row.key
    if touched is None or not key.slot.is_output or key.op.is_module:
        return
    site = touched.after.site
    if key.site != site and touched.num_touched:
        after[site]["num_rows"] += touched.num_touched
        after[site]["num_values"] += 1
        after[site]["num_wrong"] += row.verdict.fails
        after[site]["num_open"] += row.verdict is Verdict.INCONCLUSIVE


def agreements(outcome: Outcome) -> dict[str, float]:
    """The share of rows in which both sides chose the same, for each op that flipped anywhere."""
    rows: dict[str, int] = {}
    flipped: dict[str, int] = {}
    for row in having(outcome.rows, Verdict.FLIP):
        choice = row.replay.choice if row.replay else None
        if choice and not choice.only_follows:
            rows[row.key.op] = rows.get(row.key.op, 0) + choice.num_rows
            flipped[row.key.op] = flipped.get(row.key.op, 0) + choice.num_flipped
    return {op: 1 - flipped[op] / number for op, number in rows.items() if number}
