"""What a comparison or a verification comes to: its rows, their tally, and whether all is well."""

from __future__ import annotations

import html
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dumpcmp.nouns.background import Background
from dumpcmp.nouns.columns import frame
from dumpcmp.nouns.errors import VerificationError
from dumpcmp.nouns.pictures import as_figure, as_svg
from dumpcmp.nouns.row import FAILING, Row, Verdict, Why
from dumpcmp.nouns.rows import Rows, Trait, having, marked
from dumpcmp.nouns.spoken import counted, shorten

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SHOWN = 20  # rows of an answer that a notebook or a repr shows
MOST_OPEN = 0.1  # of the values: a comparison that could not judge more has no answer
WIDEST = 200  # characters of a line of a repr


@dataclass(frozen=True, slots=True)
class Tally:
    """How many rows got which verdict. Tallies add."""

    counts: dict[Verdict, int] = field(default_factory=dict)

    def __add__(self, other: Tally) -> Tally:
        verdicts = [*self.counts, *(v for v in other.counts if v not in self.counts)]
        return Tally({v: self[v] + other[v] for v in verdicts})

    def __getitem__(self, verdict: Verdict) -> int:
        return self.counts.get(verdict, 0)

    @property
    def total(self) -> int:
        """All rows."""
        return sum(self.counts.values())

    @property
    def compared(self) -> int:
        """Rows of which both sides were measured."""
        return sum(self[v] for v in (Verdict.PASS, Verdict.FAIL, Verdict.DTYPE, Verdict.NONFINITE))

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())
        return counts or "no rows"


def tally(rows: Iterable[Any]) -> Tally:
    """Count the verdicts of `rows`."""
    if isinstance(rows, Rows):
        return Tally(rows.verdicts)
    return Tally(dict(Counter(row.verdict for row in rows)))


class Answer(ABC):
    """What all answers say by the same words, whatever their rows are.

    `bool(answer)` and `passed` are true only if something was compared and nothing failed.
    """

    rows: Sequence[Any]  # each with a `verdict`
    remarks: tuple[str, ...] = ()  # what a reader must know: incomplete runs, sides run in place
    COLUMNS: tuple[str, ...] = ()  # of the table that a notebook shows

    @property
    def failing(self) -> frozenset[Verdict]:
        """The verdicts that count as failures here."""
        return FAILING

    @cached_property
    def tally(self) -> Tally:
        """How many rows got which verdict."""
        return tally(self.rows)

    @cached_property
    def failures(self) -> Sequence[Any]:
        """The rows that fail."""
        if isinstance(self.rows, Rows):
            return self.rows.having(self.failing)
        return tuple(row for row in self.rows if row.verdict in self.failing)

    @property
    def compared(self) -> bool:
        """Whether anything was held against anything."""
        return bool(self.tally.compared)

    @property
    def exit_code(self) -> int:
        """0 same, 1 different, 2 trouble: nothing was compared."""
        return int(bool(self.failures)) if self.compared else 2

    @property
    def passed(self) -> bool:
        """Whether something was compared and nothing failed."""
        return self.exit_code == 0

    def __bool__(self) -> bool:
        return self.passed

    def raise_for_status(self) -> None:
        """Raise VerificationError with the worst of it, unless it `passed`."""
        if not self.passed:
            raise VerificationError(self.message())

    @property
    @abstractmethod
    def headline(self) -> str:
        """The answer in one line."""

    @abstractmethod
    def cells(self, row: Any) -> tuple[str, ...]:
        """One row under `COLUMNS`, for a notebook."""

    @abstractmethod
    def sentence(self, row: Any) -> str:
        """One row as a line of an error."""

    def message(self, most: int = 3) -> str:
        """What failed, in a headline and a line for each of the `most` worst rows."""
        shown = self.worst[:most]
        left = len(self.failures) - len(shown)
        lines = [self.headline, *(f"  {self.sentence(row)}" for row in shown)]
        return "\n".join([*lines, f"  and {left} more"] if left > 0 else lines)

    @property
    def worst(self) -> Sequence[Any]:
        """The failing rows that a reader should see first."""
        return self.failures

    @property
    def notable(self) -> Sequence[Any]:
        """The rows to show where there is little room: those that fail, or else the first ones."""
        return self.failures or self.rows

    def text(self, most: int = sys.maxsize) -> str:
        """The headline, a table of the `most` notable rows, and the remarks."""
        return "\n  ".join([self.headline, *self._lines(most)])

    def __repr__(self) -> str:
        return "\n".join(shorten(line, WIDEST) for line in self.text(SHOWN).splitlines())

    def _lines(self, most: int) -> Iterator[str]:
        table = [self.COLUMNS, *map(self.cells, self.notable[:most])]
        widths = [max(len(cells[i]) for cells in table) for i in range(len(self.COLUMNS) - 1)] + [0]
        for cells in table if len(table) > 1 else ():
            yield "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()
        if len(self.notable) > most:
            left = counted(len(self.notable) - most, "more row")
            yield f"and {left}; to_pandas() has them all"
        yield from (f"note: {remark}" for remark in self.remarks)

    def _repr_html_(self) -> str:
        def line(cells: Iterable[str], tag: str) -> str:
            written = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
            return f"<tr>{written}</tr>"

        body = "".join(line(self.cells(row), "td") for row in self.notable[:SHOWN])
        caption = f"<caption>{html.escape(self.headline)}</caption>"
        notes = "".join(f"<p>{html.escape(remark)}</p>" for remark in self.remarks)
        return f"<table>{caption}{line(self.COLUMNS, 'th')}{body}</table>{notes}"

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a table with the columns of the CSV report."""
        return frame(self.rows)


class Conclusion(StrEnum):
    """The answer to a whole comparison, in its user's terms."""

    SAME = "SAME"  # to the bit, or within rounding
    DECISIONS = "SAME, DIFFERENT DECISIONS"  # every op is right, and some chose otherwise
    WRONG = "WRONG"  # an op did something wrong with what it was given
    PROGRAM = "DIFFERENT PROGRAM"  # other weights, other inputs, other calls
    EFFECT = "DIFFERENT"  # all ops agree, and what the run left behind does not
    UNKNOWN = "UNKNOWN"  # too little could be compared to say

    @property
    def exit_code(self) -> int:
        """0 same, 1 different, 2 trouble."""
        return {"SAME": 0, "UNKNOWN": 2, "SAME, DIFFERENT DECISIONS": 0}.get(self, 1)


def _told_of_effect(row: Row) -> str:
    """What follows the conclusion where an effect differs."""
    key, kind = row.key, row.key.op.function
    if kind == "exception":
        return f": {row.reason} (token {key.step})"
    place = "" if row.judgement.why is Why.EFFECT else f"{key.slot}: "
    return f" {kind} at token {key.step}: {place}{row.reason}"


def _step_of(row: Row) -> tuple[str, int]:
    return row.key.model, row.key.step


@dataclass(frozen=True, slots=True, repr=False)
class Outcome(Answer):
    """A whole comparison: every key of either run in exactly one row, in execution order."""

    rows: Sequence[Row]  # of a long run: read from a file when they are looked at
    roots: Sequence[Row] = ()  # where divergences began, in execution order
    remarks: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # what the runs were to record, and did not
    background: Background = field(default_factory=Background)  # for those who show it
    num_sampled: int = 0  # values of which some rows alone were kept and compared
    COLUMNS = ("token", "op", "slot", "verdict", "rel_l2", "reason")

    @property
    def first_divergence(self) -> Row | None:
        """The first op that did something wrong, or the first weight or call that is another."""
        return self.roots[0] if self.roots else None

    @property
    def conclusion(self) -> Conclusion:
        """What it all comes to."""
        if not self.compared or (self.failures and not self.is_different):
            return Conclusion.UNKNOWN
        if self.failures:
            first = self.first_divergence
            if first is not None and first.key.op.is_effect:
                return Conclusion.EFFECT
            is_wrong = first is not None and first.judgement.why not in (Why.LEAF, Why.CALL)
            return Conclusion.WRONG if is_wrong else Conclusion.PROGRAM
        if self.is_open or self.missing:
            return Conclusion.UNKNOWN
        return Conclusion.DECISIONS if self.tally[Verdict.FLIP] else Conclusion.SAME

    @property
    def is_different(self) -> bool:
        """Whether anything fails that could be read.

        Of a run that is not whole nobody knows what it would have recorded.
        """
        excused = (Verdict.ERROR, *([Verdict.UNPAIRED] if self.missing else []))
        return len(having(self.rows, *excused)) < len(self.failures)

    @property
    def is_open(self) -> bool:
        """Whether what the model gave out could not be judged, or much else and any of its ends.

        What passes at the end of the data flow vouches for all that it was computed from. So do
        the gradients of a step's parameters, for what the model gave out in that step. A gradient
        of which each rank has a term is right only if somebody adds the terms up. Nothing vouches
        for what the run left behind: nothing follows from it.
        """
        doubtful = self.tally[Verdict.INCONCLUSIVE]
        if not doubtful:
            return False
        ends = marked(self.rows, Trait.END)
        open_ends = [row for row in ends if row.verdict is Verdict.INCONCLUSIVE]
        unvouched = (r for r in open_ends if r.judgement.why is Why.TERMS or r.key.op.is_effect)
        if any(unvouched):
            return True
        if doubtful > MOST_OPEN * (doubtful + self.tally.compared):
            return bool(open_ends) or not ends
        steps = {_step_of(row) for row in open_ends if not row.key.slot.is_gradient}
        unsure = {_step_of(row) for row in open_ends if row.key.slot.is_gradient}
        vouched = {_step_of(row) for row in ends if row.key.slot.is_gradient} - unsure
        return bool(steps - vouched)

    @property
    def exit_code(self) -> int:
        """0 same, 1 different, 2 trouble."""
        return self.conclusion.exit_code

    @property
    def word(self) -> str:
        """The answer in one line, without the tally."""
        return f"{self.conclusion}{self._said()}"

    def _said(self) -> str:
        """What follows the conclusion."""
        match self.conclusion:
            case Conclusion.SAME:
                if not marked(self.rows, Trait.APART):
                    return ": everything compared is the same, bit for bit"
                said = ": everything compared agrees within rounding"
                values = counted(self.num_sampled, "value")
                some = f"; of {values} only some rows were compared"
                return said + some if self.num_sampled else said
            case Conclusion.DECISIONS:
                return f": every op is right; {self._flipped()}"
            case Conclusion.UNKNOWN:
                return f": {self._missing()}"
        first = self.first_divergence
        if first is None:
            failed = self.failures[0]
            values = counted(len(self.failures), "value fails", "values fail")
            return f": {values}, the first is {failed.key}"
        if first.key.op.is_effect:
            return _told_of_effect(first)
        side = " in golden" if first.judgement.why is Why.GOLDEN else ""
        return f"{side} at {first.key.site.place}: {first.reason}"

    def _flipped(self) -> str:
        flips = having(self.rows, Verdict.FLIP)
        return f"{len(flips)} of them chose otherwise, first {flips[0].key.site.place}"

    def _missing(self) -> str:
        if not self.compared:
            return "nothing was compared"
        if self.missing and not having(self.rows, Verdict.ERROR):
            return f"what was compared agrees, but {self.missing[0]}"
        kind = Verdict.ERROR if self.failures else Verdict.INCONCLUSIVE
        rows = having(self.rows, kind)
        effect = next((row for row in rows if row.key.op.is_effect), None)
        if effect is not None:
            key = effect.key
            return f"the {key.op.function} at token {key.step} is open: {effect.reason}"
        first = next((row for row in rows if not row.key.op.is_module), rows[0])  # or what has it
        values = counted(len(rows), "value")
        return f"{values} could not be judged, the first is {first.key}: {first.reason}"

    @property
    def headline(self) -> str:
        """The answer in one line, and the tally."""
        return f"{self.word} ({self.tally})"

    @property
    def worst(self) -> Sequence[Row]:
        """Where divergences began; or else what fails."""
        return self.roots or self.failures

    @property
    def notable(self) -> Sequence[Row]:
        """The worst, or else the first rows."""
        return self.worst or self.rows

    def cells(self, row: Row) -> tuple[str, ...]:
        """One row under `COLUMNS`."""
        rel_l2 = "" if row.metrics is None else f"{row.metrics.rel_l2:.3g}"
        op = f"{row.key.op}#{row.key.call}"
        return str(row.key.step), op, row.key.slot, row.verdict, rel_l2, row.reason

    def sentence(self, row: Row) -> str:
        """One row as a line of an error."""
        return f"{row.key}: {row.verdict}; {row.reason}"

    def _repr_html_(self) -> str:
        # Not super(): of a dataclass with slots the class that it names is another one.
        return Answer._repr_html_(self) + as_svg(self.rows)

    def plot(self) -> Figure:
        """The divergence curve and the heat map as a figure of matplotlib (extra ``plot``)."""
        return as_figure(self.rows, self.word)
