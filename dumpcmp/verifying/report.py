"""What a verification found, as something to read, to raise, and to put in a table."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dumpcmp.nouns.errors import VerificationError
from dumpcmp.nouns.key import ROOT
from dumpcmp.nouns.outcome import Tally, tally
from dumpcmp.nouns.row import Row, Verdict, Why

if TYPE_CHECKING:
    import pandas as pd

NEXT = (
    "to find the op: dumpcmp.explain(inputs, golden, target), or from a shell\n"
    "    dumpcmp dump --mode eager    --path d1 --model PKG.MODULE:BUILD\n"
    "    dumpcmp dump --mode compiled --path d2 --model PKG.MODULE:BUILD\n"
    "    dumpcmp compare --golden-path d1 --my-path d2"
)
_WORST_FIRST = (
    Verdict.ERROR,
    Verdict.NONFINITE,
    Verdict.SHAPE,
    Verdict.UNPAIRED,
    Verdict.DTYPE,
    Verdict.FAIL,
    Verdict.INCONCLUSIVE,
)


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """One row for each value that golden or the target gave, and which of them are failures.

    `bool(report)` is true only if something was compared and nothing failed.
    """

    golden: str  # what the two sides are called
    target: str
    rows: tuple[Row, ...]
    failing: frozenset[Verdict]  # the verdicts that count as failures here
    remarks: tuple[str, ...] = ()
    enabled: bool = True  # False: verification was switched off and nothing ran
    cause: BaseException | None = None  # what the target raised, if it did

    @property
    def failures(self) -> tuple[Row, ...]:
        """The rows that fail, the worst first."""
        return tuple(sorted((r for r in self.rows if r.verdict in self.failing), key=_severity))

    @property
    def tally(self) -> Tally:
        """How many rows got which verdict."""
        return tally(self.rows)

    @property
    def passed(self) -> bool:
        """Whether values were compared and none failed."""
        return self._compared and not self.failures

    @property
    def doubts(self) -> tuple[str, ...]:
        """What passes by its checker's rule while other numbers say that it should not."""
        passing = (row for row in self.rows if row.verdict is Verdict.PASS)
        return tuple(sentence(row) for row in passing if row.judgement.why is Why.BLIND)

    @property
    def has_grads(self) -> bool:
        """Whether gradients are among the rows, or the target never came so far."""
        return bool(self.cause) or any(row.key.slot.startswith("grad") for row in self.rows)

    @property
    def _compared(self) -> bool:
        return self.enabled and any(row.verdict is not Verdict.EMPTY for row in self.rows)

    def __bool__(self) -> bool:
        return self.passed

    def raise_for_status(self) -> None:
        """Raise VerificationError with the worst three rows, unless all is well or switched off."""
        if self.enabled and not self.passed:
            raise VerificationError(self.message(), hint=NEXT) from self.cause

    def message(self, most: int = 3) -> str:
        """What failed, in a headline and a line for each of the `most` worst rows."""
        left = len(self.failures) - most
        lines = [self._headline(), *(f"  {sentence(row)}" for row in self.failures[:most])]
        return "\n".join([*lines, f"  and {left} more"] if left > 0 else lines)

    def _headline(self) -> str:
        sides = f"{self.target} against {self.golden}"
        if not self.enabled:
            return f"{sides}: not verified, verification is switched off"
        if not self._compared:
            return f"{sides}: nothing was compared"
        if self.failures:
            return f"{sides}: {len(self.failures)} of {len(self.rows)} values differ"
        return f"{sides}: all {len(self.rows)} values agree"

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a table with the columns of the CSV report."""
        from dumpcmp.nouns import columns

        return columns.frame(self.rows)

    def __repr__(self) -> str:
        lines = [self._headline(), *(f"  {line}" for line in _aligned(self.rows))]
        return "\n".join([*lines, *(f"  note: {remark}" for remark in self.remarks)])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(row)) + "</tr>"
            for row in self.rows
        )
        notes = "".join(f"<p>{html.escape(remark)}</p>" for remark in self.remarks)
        caption = f"<caption>{html.escape(self._headline())}</caption>"
        return f"<table>{caption}<tr>{head}</tr>{body}</table>{notes}"


_COLUMNS = ("value", "verdict", "rel_l2", "max_abs_diff", "pcc", "reason")


def _cells(row: Row) -> tuple[str, ...]:
    metrics = row.metrics
    numbers = (metrics.rel_l2, metrics.max_abs_diff, metrics.pcc) if metrics else (math.nan,) * 3
    return _named(row), row.verdict, *map(number, numbers), row.judgement.reason


def _aligned(rows: tuple[Row, ...]) -> Iterator[str]:
    table = [_COLUMNS, *map(_cells, rows)]
    widths = [max(len(cells[i]) for cells in table) for i in range(len(_COLUMNS) - 1)] + [0]
    for cells in table:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        yield "  ".join(padded).rstrip()


def _named(row: Row) -> str:
    """The row's slot, and in a graph the node that it is about: ``output.0 (relu)``."""
    return row.key.slot if row.key.op == ROOT else f"{row.key.slot} ({row.key.op})"


def number(value: float) -> str:
    """A metric in three digits; a dash where it does not exist."""
    return "-" if math.isnan(value) else f"{value:.3g}"


def sentence(row: Row) -> str:
    """One row as a line of an error: what, which verdict, why, the numbers, where."""
    parts = [f"{_named(row)}: {row.verdict}"]
    if row.judgement.reason:
        parts.append(row.judgement.reason)
    if row.metrics and row.metrics.count and "rel_l2" not in row.judgement.reason:
        parts.append(
            f"rel_l2 {number(row.metrics.rel_l2)}, max_abs_diff {number(row.metrics.max_abs_diff)}"
            + (f" at {list(row.metrics.worst)}" if row.metrics.worst else "")
        )
    if row.source:
        parts.append(f"computed at {row.source}")
    return "; ".join(parts)


def _severity(row: Row) -> tuple[int, float]:
    rel_l2 = row.metrics.rel_l2 if row.metrics else math.nan
    return _WORST_FIRST.index(row.verdict), -(math.inf if math.isnan(rel_l2) else rel_l2)
