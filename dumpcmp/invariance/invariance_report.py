"""The outcome of a check of invariance: a row a schedule, and the first op that depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from dumpcmp.nouns.outcome import Answer
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.spoken import counted

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class InvarianceRow:
    """One schedule beside the reference, bit by bit."""

    vary: str
    size: int
    schedule: str  # "batches of 4"
    verdict: Verdict  # PASS, FAIL, or SKIPPED with a reason
    num_rows: int = 0  # pairs of rows of values
    num_unpaired: int = 0
    op: str = ""  # the first whose rows had equal inputs and gave other outputs
    call: int = 0
    slot: str = ""
    request: str = ""
    position: int = -1
    reason: str = ""


@dataclass(frozen=True, repr=False)
class InvarianceReport(Answer):
    """Whether a model gives each row the same bits by every schedule that was tried.

    Exit codes are those of all answers: 0 same, 1 different, 2 nothing could be compared.
    """

    rows: Sequence[InvarianceRow]
    remarks: tuple[str, ...] = ()
    COLUMNS: tuple[str, ...] = field(
        default=("vary", "schedule", "verdict", "rows", "op", "reason"), init=False
    )

    @property
    def compared(self) -> bool:
        """Whether any rows were paired."""
        return any(row.num_rows for row in self.rows)

    @cached_property
    def first(self) -> dict[str, InvarianceRow]:
        """For each kind of schedule that changes bits, the smallest that does."""
        found: dict[str, InvarianceRow] = {}
        for row in self.rows:
            if row.verdict is Verdict.FAIL:
                found.setdefault(row.vary, row)
        return found

    @property
    def headline(self) -> str:
        """The answer in one line."""
        tried = counted(sum(row.num_rows > 0 for row in self.rows), "schedule")
        if not self.compared:
            return f"UNKNOWN: no rows could be paired ({counted(len(self.rows), 'schedule')})"
        if not self.first:
            return f"SAME: every row has the same bits in {tried}"
        row = next(iter(self.first.values()))
        kinds = ", ".join(self.first)
        return f"DIFFERENT by {kinds}: {row.op} (call {row.call}) from {row.schedule} on ({tried})"

    @property
    def notable(self) -> Sequence[InvarianceRow]:
        """All schedules."""
        return self.rows

    def cells(self, row: InvarianceRow) -> tuple[str, ...]:
        """One row under `COLUMNS`."""
        op = f"{row.op}#{row.call} {row.slot}" if row.op else ""
        return row.vary, row.schedule, row.verdict, str(row.num_rows), op, row.reason

    def sentence(self, row: InvarianceRow) -> str:
        """One row as a line of an error."""
        return f"{row.schedule}: {row.op} (call {row.call}): {row.reason}"

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a table."""
        import pandas as pd

        names = list(InvarianceRow.__slots__)
        return pd.DataFrame([{n: getattr(r, n) for n in names} for r in self.rows], columns=names)
