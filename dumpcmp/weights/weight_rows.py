"""The outcome of a comparison of weights: a verdict on each weight of either side."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from dumpcmp.nouns.outcome import Answer
from dumpcmp.nouns.spoken import counted

if TYPE_CHECKING:
    import pandas as pd


class WeightVerdict(StrEnum):
    """What a weight of mine is of golden's."""

    EQUAL = "equal"  # the same bits, in golden's order or in one that its name stands for
    CAST = "cast"  # golden's in another dtype, rounded or quantised as it should be
    MISSING = "missing"  # mine does not have it, or not all of its rows
    UNEXPECTED = "unexpected"  # golden has nothing that it could be
    PERMUTED = "permuted"  # golden's rows, columns or tensors in another order
    TRANSPOSED = "transposed"  # rows and columns exchanged
    SCALED = "scaled"  # golden's times a number: of all, of each row, column or block
    ZERO = "zero"  # zeros where golden has none
    STALE = "stale"  # those of the older checkpoint
    OTHER = "other"  # none of these
    UNREAD = "unread"  # its elements are not there, so nothing is known


SOUND = frozenset((WeightVerdict.EQUAL, WeightVerdict.CAST))
ALLOWED = ("missing", "unexpected", "permuted", "transposed", "scaled")  # that may be meant
_SEVERITY = tuple(WeightVerdict)  # of several ranks or experts, the last one is told


@dataclass(frozen=True, slots=True)
class WeightRow:
    """One weight of mine and what it is of golden's, or one of golden's that mine lacks."""

    name: str
    verdict: WeightVerdict
    detail: str = ""
    golden: tuple[str, ...] = ()  # the weights that it is made of
    dtype: str = ""
    golden_dtype: str = ""
    shape: tuple[int, ...] = ()
    rel_l2: float = 0.0
    num_wrong: int = 0
    count: int = 0
    is_meant: bool = False  # its verdict was allowed, or its shape shows that it is deliberate

    @property
    def fails(self) -> bool:
        """Whether it makes mine different."""
        return self.verdict not in SOUND and not self.is_meant

    @property
    def severity(self) -> tuple[bool, int]:
        """What orders rows of the same weight: the worst is told."""
        return self.fails, _SEVERITY.index(self.verdict)


_FIELDS = (
    "name", "verdict", "detail", "golden", "golden_dtype", "dtype", "shape", "num_wrong", "count",
    "rel_l2",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class WeightReport(Answer):
    """Are these weights the checkpoint's? A row for each weight of either side.

    Exit codes are those of all answers: 0 same, 1 different, 2 nothing could be compared.
    """

    rows: Sequence[WeightRow] = ()
    remarks: tuple[str, ...] = ()
    COLUMNS: tuple[str, ...] = field(default=("weight", "verdict", "detail", "golden"), init=False)

    @cached_property
    def counts(self) -> Counter[WeightVerdict]:
        """How many weights got which verdict."""
        return Counter(row.verdict for row in self.rows)

    @cached_property
    def failures(self) -> Sequence[WeightRow]:
        """The weights that are not golden's, those whose elements could be read first."""
        failing = [row for row in self.rows if row.fails]
        return sorted(failing, key=lambda row: row.verdict is WeightVerdict.UNREAD)

    @property
    def compared(self) -> bool:
        """Whether any weight was held against one of golden."""
        return any(row.count for row in self.rows)

    @property
    def exit_code(self) -> int:
        """0 same, 1 different, 2 trouble: nothing was compared, or what is unread may be wrong."""
        if not self.compared:
            return 2
        known = [row for row in self.failures if row.verdict is not WeightVerdict.UNREAD]
        return 1 if known else 2 * bool(self.failures)

    @property
    def headline(self) -> str:
        """The answer in one line."""
        word = {0: "SAME", 1: "DIFFERENT", 2: "UNKNOWN"}[self.exit_code]
        told = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.most_common())
        if not self.compared:
            return f"{word}: no weight of mine could be held against one of golden ({told})"
        if self.exit_code == 1:
            return f"{word}: {counted(len(self.failures), 'weight')} of {len(self.rows)} ({told})"
        return f"{word}: {counted(len(self.rows), 'weight')} ({told})"

    def cells(self, row: WeightRow) -> tuple[str, ...]:
        """One row under `COLUMNS`."""
        return row.name, row.verdict, row.detail, " + ".join(_shown(row.golden))

    def sentence(self, row: WeightRow) -> str:
        """One row as a line of an error."""
        return f"{row.name}: {row.verdict}: {row.detail}"

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a table."""
        import pandas as pd

        return pd.DataFrame([_cells(row) for row in self.rows], columns=list(_FIELDS))

    def to_csv(self) -> str:
        """The rows as CSV."""
        written = io.StringIO()
        table = csv.DictWriter(written, _FIELDS, lineterminator="\n")
        table.writeheader()
        table.writerows(_cells(row) for row in self.rows)
        return written.getvalue()


def _shown(names: Sequence[str]) -> Sequence[str]:
    return names if len(names) <= 3 else (*names[:2], f"{len(names) - 2} more")


def _cells(row: WeightRow) -> dict[str, object]:
    cells = {name: getattr(row, name) for name in _FIELDS}
    shape = "x".join(map(str, row.shape))
    return cells | {"verdict": str(row.verdict), "golden": " ".join(row.golden), "shape": shape}
