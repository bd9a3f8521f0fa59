"""What a comparison says of choices: who took what instead of what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dumpcmp.nouns.key import Site
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.replay import Choice, Flip
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.rows import having
from dumpcmp.nouns.spoken import counted

_ROUTES = re.compile(r"moe|expert|rout|gat(e|ing)\b", re.IGNORECASE)  # modules that send to experts
_MOST = 3  # of what a flip took that a sentence lists


@dataclass(frozen=True, slots=True)
class Decision:
    """One op that chose otherwise than golden."""

    site: Site
    choice: Choice

    @property
    def sentences(self) -> Iterator[str]:
        """One for each flip that is known, and one for the others."""
        for flip in self.choice.flips:
            yield f"{self._taken(flip)} at {self.site.op} ({_why(flip)})"
        more = self.choice.num_flipped - len(self.choice.flips)
        if more > 0:
            yield f"{counted(more, 'more row')} chose otherwise at {self.site.op}"

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
    for row in having(outcome.rows, Verdict.FLIP):
        if row.replay and row.replay.choice:
            found.setdefault(row.key.site, row.replay.choice)
    return [Decision(site, choice) for site, choice in found.items()]


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
