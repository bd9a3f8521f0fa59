"""What a verification found, as something to read, to raise, and to put in a table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dumpcmp.judge import unseen_by
from dumpcmp.nouns.errors import VerificationError
from dumpcmp.nouns.key import ROOT
from dumpcmp.nouns.outcome import Answer
from dumpcmp.nouns.row import Row, Verdict, Why
from dumpcmp.nouns.spoken import counted, plural
from dumpcmp.verifying.config import VerifyConfig

NEXT = (
    "to find the op: dumpcmp.explain(inputs, golden, target), or from a shell\n"
    "    dumpcmp dump --mode eager    --path d1 --model PKG.MODULE:BUILD\n"
    "    dumpcmp dump --mode compiled --path d2 --model PKG.MODULE:BUILD\n"
    "    dumpcmp compare --golden-path d1 --my-path d2"
)
_UNSEEN = (Verdict.EMPTY, Verdict.SKIPPED)
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
class Report(Answer):
    """One row for each value that golden or the target gave, and which of them are failures."""

    golden: str  # what the two sides are called
    target: str
    rows: tuple[Row, ...]
    config: VerifyConfig
    remarks: tuple[str, ...] = ()
    cause: BaseException | None = None  # what the target raised, if it did
    outputs: tuple[list[Any], list[Any]] | None = field(default=None, compare=False)
    COLUMNS = ("value", "verdict", "rel_l2", "max_abs_diff", "pcc", "reason")

    def __iter__(self) -> Iterator[list[Any]]:
        """The outputs of golden and those of the target, as tt-forge's verify returns them."""
        return iter(self.outputs or ([], []))

    @property
    def failing(self) -> frozenset[Verdict]:
        """The verdicts that the config counts as failures."""
        return self.config.failing

    @property
    def failures(self) -> tuple[Row, ...]:
        """The rows that fail, the worst first."""
        return tuple(sorted((r for r in self.rows if r.verdict in self.failing), key=_severity))

    @property
    def notable(self) -> tuple[Row, ...]:
        """The rows that fail, then the others."""
        return *self.failures, *(row for row in self.rows if row.verdict not in self.failing)

    @property
    def doubts(self) -> tuple[str, ...]:
        """What passes by its checker's rule while other numbers say that it should not."""
        return tuple(self.sentence(row) for row in self.rows if row.judgement.why is Why.BLIND)

    @property
    def has_grads(self) -> bool:
        """Whether gradients are among the rows, or the target never came so far."""
        return bool(self.cause) or any(row.key.slot.is_gradient for row in self.rows)

    @property
    def compared(self) -> bool:
        """Whether the sides gave anything to compare, and were held against each other."""
        return self.config.enabled and any(row.verdict not in _UNSEEN for row in self.rows)

    def raise_for_status(self) -> None:
        """Raise VerificationError with the worst three rows, unless all is well or switched off."""
        if self.config.enabled and not self.passed:
            raise VerificationError(self.message(), hint=NEXT) from self.cause

    @property
    def headline(self) -> str:
        """Which sides, and how many of their values differ."""
        sides, values = f"{self.target} against {self.golden}", counted(len(self.rows), "value")
        if not self.config.enabled:
            return f"{sides}: not verified, verification is switched off"
        if not self.compared:
            return f"{sides}: nothing was compared"
        if self.failures:
            differ = plural(len(self.failures), "differs", "differ")
            return f"{sides}: {len(self.failures)} of {values} {differ}"
        agree = "1 value agrees" if len(self.rows) == 1 else f"all {values} agree"
        return f"{sides}: {agree}{self._caveat}"

    @property
    def _caveat(self) -> str:
        """By what they agree and what that does not see, unless the rule sees all."""
        said = [unseen_by(checker) for checker in self.config.checkers]
        if not all(said):  # one of several rules sees all
            return ""
        doubts = len(self.doubts)
        also = f"; {doubts} of them would fail by the rounding rule" if doubts else ""
        return f" by {said[0]}{also}"

    def cells(self, row: Row) -> tuple[str, ...]:
        """One row under `COLUMNS`."""
        metrics = row.metrics
        found = (metrics.rel_l2, metrics.max_abs_diff, metrics.pcc) if metrics else (math.nan,) * 3
        return _named(row), row.verdict, *map(number, found), row.reason

    def sentence(self, row: Row) -> str:
        """One row as a line of an error: what, which verdict, why, the numbers, where."""
        parts = [f"{_named(row)}: {row.verdict}", row.reason]
        told = not math.isnan(row.judgement.limit) or row.judgement.why is Why.BLIND
        if row.metrics and row.metrics.count and not told:  # by the reason itself
            far = f"max_abs_diff {number(row.metrics.max_abs_diff)}"
            where = f" at {list(row.metrics.worst)}" if row.metrics.worst else ""
            parts.append(f"rel_l2 {number(row.metrics.rel_l2)}, {far}{where}")
        if row.source:
            parts.append(f"computed at {row.source}")
        return "; ".join(filter(None, parts))


def _named(row: Row) -> str:
    """The row's slot, and in a graph the node that it is about: ``output.0 (relu)``."""
    return row.key.slot if row.key.op == ROOT else f"{row.key.slot} ({row.key.op})"


def number(value: float) -> str:
    """A metric in three digits; a dash where it does not exist."""
    return "-" if math.isnan(value) else f"{value:.3g}"


def _severity(row: Row) -> tuple[int, float]:
    rel_l2 = row.metrics.rel_l2 if row.metrics else math.nan
    return _WORST_FIRST.index(row.verdict), -(math.inf if math.isnan(rel_l2) else rel_l2)
