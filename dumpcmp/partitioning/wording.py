"""The findings in a few lines of text: what was left out first, then what failed."""

from collections import Counter

from dumpcmp.nouns.row import Verdict
from dumpcmp.partitioning.findings import Finding, Findings

_MOST = 20  # rows of a kind that are listed


def summary(findings: Findings) -> str:
    """What a reader must know, the least flattering first."""
    lines = [*_skipped(findings), *_counts(findings), *_listed(findings)]
    return "\n".join(lines) + "\n"


def _skipped(findings: Findings) -> list[str]:
    rows = [row for row in findings.rows if row.verdict is Verdict.SKIPPED]
    num = sum(len(row.node.split()) for row in rows)
    lines = [f"SKIPPED {num} of {max(findings.num_nodes, num)} nodes"]
    groups = Counter[tuple[str, str]]()
    for row in rows:
        groups[row.op, row.reason] += len(row.node.split())
    lines += [f"  {count} x {op}: {reason}" for (op, reason), count in groups.most_common()]
    return lines


def _counts(findings: Findings) -> list[str]:
    single = [row for row in findings.rows if row.idx is None and row.annotation]
    parts = [row for row in findings.rows if row.idx is not None]
    seconds = sum(row.seconds for row in findings.rows if row.seconds == row.seconds)
    lines = []
    if findings.num_compute:
        share = 100 * findings.num_annotated / findings.num_compute
        lines.append(
            f"annotated {findings.num_annotated} of {findings.num_compute} compute nodes "
            f"({share:.0f} %), {len(single)} different ops"
        )
    if findings.num_remembered:
        lines.append(
            f"{findings.num_remembered} ops passed in an earlier run and were not run again"
        )
    lines.append(f"single device: {_tallied(single)}")
    lines.append(f"partitions: {_tallied(parts)}, {seconds:.1f} s")
    return lines


def _tallied(rows: list[Finding]) -> str:
    counts = Counter(row.verdict for row in rows)
    words = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]]
    return f"{len(rows)} tried" + (f": {', '.join(words)}" if words else "")


def _listed(findings: Findings) -> list[str]:
    lines = []
    for verdict in (Verdict.FAIL, Verdict.ERROR, Verdict.REFUSED, Verdict.INCONCLUSIVE):
        rows = [row for row in findings.rows if row.verdict is verdict]
        lines += [f"{row}{f' ({row.source})' if row.source else ''}" for row in rows[:_MOST]]
        if len(rows) > _MOST:
            lines.append(f"... and {len(rows) - _MOST} more rows {verdict}")
    return lines
