"""What was found: one Finding per op and partition, and all that is said of them."""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import TYPE_CHECKING, Any

from dumpcmp.nouns.outcome import SHOWN, Answer, tally
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.spoken import counted, plural

if TYPE_CHECKING:
    import pandas as pd

_WIDTH = 80  # characters of a reason where there is little room: a rank's traceback is a book


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

    @property
    def num_nodes(self) -> int:
        """How many nodes of the graph this row stands for."""
        return len(self.node.split())

    def __str__(self) -> str:
        words = [f"{self.verdict} {self.op}"]
        if self.idx is not None:
            words = [f"{words[0]} idx {self.idx} dim {self.dim} num {self.num}", self.rule]
        if self.reason:
            words += [self.worst_slot, self.reason]
        return ": ".join(filter(None, words))


def is_verified(rows: Sequence[Finding]) -> bool:
    """Whether an op and its partitions were tried, and each came to an answer."""
    return not any(row.verdict in (Verdict.SKIPPED, Verdict.INCONCLUSIVE) for row in rows)


COLUMNS = tuple(field.name for field in fields(Finding))


@dataclass(frozen=True, slots=True, repr=False)
class Findings(Answer):
    """All rows of a verification, in the order of the ops.

    SKIPPED is an op that was not tried, since nobody knows how to split it or there is nothing to
    split; INCONCLUSIVE one that was tried and proves nothing. Neither fails, and neither passes:
    `passed` is true if every node that computes something was verified and nothing failed, or, of
    findings that are `partial`, if something was. `bool(findings)` asks that every row is PASS.
    """

    rows: tuple[Finding, ...]
    num_nodes: int = 0
    num_compute: int = 0  # nodes that compute something from tensors
    num_annotated: int = 0  # of those, the ones whose partitions are known
    num_remembered: int = 0  # ops that passed in an earlier run and were not run again
    num_unverified: int = 0  # nodes that compute something, and were not or not wholly verified
    partial: bool = False  # that some were not is known, and meant
    COLUMNS = ("op", "idx", "dim", "num", "verdict", "slot", "max_abs_diff", "rule or reason")

    def __bool__(self) -> bool:
        return bool(self.rows) and all(row.verdict is Verdict.PASS for row in self.rows)

    def __add__(self, other: Findings) -> Findings:
        return Findings(
            self.rows + other.rows,
            self.num_nodes + other.num_nodes,
            self.num_compute + other.num_compute,
            self.num_annotated + other.num_annotated,
            self.num_remembered + other.num_remembered,
            self.num_unverified + other.num_unverified,
            self.partial or other.partial,
        )

    @property
    def exit_code(self) -> int:
        """0 same, 1 different or refused, 2 trouble: not everything was verified."""
        is_left = self.num_unverified and not self.partial
        return 1 if self.failures else 0 if self.tally[Verdict.PASS] and not is_left else 2

    @property
    def headline(self) -> str:
        """Whether the partitions are the same as the ops alone, and the tally."""
        counts = str(self.tally) or "no rows"
        if self.failures:
            rows, fail = counted(len(self.rows), "row"), plural(len(self.failures), "fails", "fail")
            return f"DIFFERENT: {len(self.failures)} of {rows} {fail} ({counts})"
        if not self.tally[Verdict.PASS]:
            return f"TROUBLE: nothing was verified ({counts})"
        if not self.passed:
            nodes = counted(self.num_unverified, "node was", "nodes were")
            return f"TROUBLE: {nodes} not verified ({counts})"
        left = "" if self else "; not everything was verified"
        return f"SAME: every partition that was verified agrees with the op alone{left} ({counts})"

    @property
    def notable(self) -> Sequence[Finding]:
        """What fails; or else what did not pass; or else all."""
        others = [row for row in self.rows if row.verdict is not Verdict.PASS]
        return self.failures or others or self.rows

    def cells(self, row: Finding) -> tuple[str, ...]:
        """One row under `COLUMNS`."""
        option = map(_written, (row.idx, row.dim, row.num))
        why = textwrap.shorten(row.reason or row.rule, _WIDTH, placeholder=" ...")
        return row.op, *option, row.verdict, row.worst_slot, _written(row.max_abs_diff), why

    def sentence(self, row: Finding) -> str:
        """One row as a line of an error."""
        return f"{row}{f' ({row.source})' if row.source else ''}"

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a table with the columns of ``results.csv``."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows], columns=list(COLUMNS))

    def to_csv(self) -> str:
        """The rows as ``results.csv``; what does not exist is an empty field."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(map(_written, astuple(row)) for row in self.rows)
        return text.getvalue()

    def summary(self) -> str:
        """What a reader must know, the least flattering first: left out, counts, failures."""
        lines = [*self._skipped(), *self._counts(), *self._listed()]
        return "\n".join(lines) + "\n"

    def _skipped(self) -> Iterator[str]:
        groups = Counter[tuple[str, str]]()
        for row in self.rows:
            if row.verdict is Verdict.SKIPPED:
                groups[row.op, row.reason] += row.num_nodes
        nodes = counted(max(self.num_nodes, groups.total()), "node")
        yield f"SKIPPED {groups.total()} of {nodes}"
        for (op, reason), count in groups.most_common():
            yield f"  {count} x {op}: {reason}"

    def _counts(self) -> Iterator[str]:
        single = [row for row in self.rows if row.idx is None and row.annotation]
        parts = [row for row in self.rows if row.idx is not None]
        seconds = sum(row.seconds for row in self.rows if not math.isnan(row.seconds))
        if self.num_compute:
            share = 100 * self.num_annotated / self.num_compute
            nodes = counted(self.num_compute, "compute node")
            known = f"annotated {self.num_annotated} of {nodes}"
            yield f"{known} ({share:.0f} %), {counted(len(single), 'different op')}"
        if self.num_unverified:
            nodes = counted(self.num_unverified, "compute node")
            yield f"not verified, or not wholly: {nodes}{' (--partial)' if self.partial else ''}"
        if self.num_remembered:
            were = plural(self.num_remembered, "was", "were")
            ops = counted(self.num_remembered, "op")
            yield f"{ops} passed in an earlier run and {were} not run again"
        yield f"single device: {_tried(single)}"
        yield f"partitions: {_tried(parts)}, {seconds:.1f} s"

    def _listed(self) -> Iterator[str]:
        for verdict in (Verdict.FAIL, Verdict.ERROR, Verdict.REFUSED, Verdict.INCONCLUSIVE):
            rows = [row for row in self.rows if row.verdict is verdict]
            yield from map(self.sentence, rows[:SHOWN])
            if len(rows) > SHOWN:
                yield f"... and {counted(len(rows) - SHOWN, 'more row')} {verdict}"


def _written(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _tried(rows: Sequence[Finding]) -> str:
    counted = sorted(tally(rows).counts.items(), key=lambda pair: list(Verdict).index(pair[0]))
    words = ", ".join(f"{count} {verdict}" for verdict, count in counted)
    return f"{len(rows)} tried" + (f": {words}" if words else "")
