"""What partition verification found: one Finding per op and partition, and their CSV."""

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from dumpcmp.nouns.outcome import Tally
from dumpcmp.nouns.row import Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``results.csv``; a row without `idx` is the op itself against float64."""

    node: str  # every node of the graph that this row stands for
    op: str
    annotation: str = ""
    idx: int | None = None
    dim: int | None = None
    num: int | None = None
    rule: str = ""  # how inputs split and outputs come together, in words
    verdict: Verdict = Verdict.SKIPPED
    loss_single: float = math.nan  # sum of the outputs of the single run
    loss_multi: float = math.nan  # the same of the partitioned run
    max_abs_diff: float = math.nan  # partitioned against single, in the worst slot
    max_rel_err: float = math.nan
    rmse_reference: float = math.nan  # rms of the float64 value itself: the scale of the next two
    rmse_single: float = math.nan  # of the single run against float64
    rmse_partitioned: float = math.nan  # of the partitioned run against float64
    worst_slot: str = ""
    reason: str = ""
    source: str = ""  # the user's line
    seconds: float = math.nan

    def __str__(self) -> str:
        words = [f"{self.verdict} {self.op}"]
        if self.idx is not None:
            words = [f"{words[0]} idx {self.idx} dim {self.dim} num {self.num}", self.rule]
        if self.reason:
            words += [self.worst_slot, self.reason]
        return ": ".join(filter(None, words))


COLUMNS = tuple(field.name for field in fields(Finding))


@dataclass(frozen=True, slots=True)
class Findings:
    """All rows of a verification, in the order of the ops."""

    rows: tuple[Finding, ...]
    num_nodes: int = 0
    num_compute: int = 0  # nodes that compute something from tensors
    num_annotated: int = 0  # of those, the ones whose partitions are known
    num_remembered: int = 0  # ops that passed in an earlier run and were not run again

    def __bool__(self) -> bool:
        return bool(self.rows) and all(row.verdict is Verdict.PASS for row in self.rows)

    def __add__(self, other: "Findings") -> "Findings":
        return Findings(
            self.rows + other.rows,
            self.num_nodes + other.num_nodes,
            self.num_compute + other.num_compute,
            self.num_annotated + other.num_annotated,
            self.num_remembered + other.num_remembered,
        )

    @property
    def tally(self) -> Tally:
        """The counts of the verdicts."""
        counts: dict[Verdict, int] = {}
        for row in self.rows:
            counts[row.verdict] = counts.get(row.verdict, 0) + 1
        return Tally(counts)

    @property
    def exit_code(self) -> int:
        """0 same, 1 different, 2 trouble: nothing was verified."""
        if any(row.verdict.fails for row in self.rows):
            return 1
        return 0 if self.tally[Verdict.PASS] else 2


def to_csv(rows: Iterable[Finding]) -> str:
    """The rows as CSV under `COLUMNS`; what does not exist is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(value) for value in to_dict(row).values()] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def to_dict(row: Finding) -> dict[str, Any]:
    """The fields of `row` by name."""
    return asdict(row)


def from_dict(stored: dict[str, Any]) -> Finding:
    """The row that `to_dict` gave."""
    return Finding(**{**stored, "verdict": Verdict(stored["verdict"])})
