"""What a comparison says of choices: who took what instead of what, and how much came of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dumpcmp.nouns.key import Site
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.replay import Choice, Flip
from dumpcmp.nouns.row import Row, Verdict

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
            yield f"{more} more rows chose otherwise at {self.site.op}"
        if self.num_rows:
            where = f"{self.num_rows} rows in {self.num_values} values after it"
            yield f"{where} are another computation; {self._right}"

    @property
    def _right(self) -> str:
        if self.num_wrong:
            return f"{self.num_wrong} of the values are wrong"
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
    after: dict[Site, list[Row]] = {}
    for row in outcome.rows:
        if row.verdict is Verdict.FLIP and row.replay and row.replay.choice:
            found.setdefault(row.key.site, row.replay.choice)
        slot = row.key.slot
        if row.touched and slot.is_output and not row.key.op.is_module:
            after.setdefault(row.touched.after.site, []).append(row)
    return [_decision(site, choice, after.get(site, ())) for site, choice in found.items()]


def _decision(site: Site, choice: Choice, after: Sequence[Row]) -> Decision:
    rows = [
        row for row in after if row.key.site != site and row.touched and row.touched.num_touched
    ]
    return Decision(
        site,
        choice,
        sum(row.touched.num_touched for row in rows if row.touched),
        len(rows),
        sum(row.verdict.fails for row in rows),
        sum(row.verdict is Verdict.INCONCLUSIVE for row in rows),
    )


def agreements(outcome: Outcome) -> dict[str, float]:
    """The share of rows in which both sides chose the same, for each op that flipped anywhere."""
    rows: dict[str, int] = {}
    flipped: dict[str, int] = {}
    for row in outcome.rows:
        choice = row.replay.choice if row.replay else None
        if choice and row.verdict is Verdict.FLIP and not choice.only_follows:
            rows[row.key.op] = rows.get(row.key.op, 0) + choice.num_rows
            flipped[row.key.op] = flipped.get(row.key.op, 0) + choice.num_flipped
    return {op: 1 - flipped[op] / number for op, number in rows.items() if number}
