"""Partition verification of whole graphs: coverage, verdicts and seconds."""

import tempfile
import time

from benchmarks.tables import Table
from dumpcmp.nouns.row import Verdict
from dumpcmp.partitioning import Findings, verify_graph
from tests.partitioning.models import exported

MODELS = ("demo", "resnet", "bert", "gpt2", "llama", "qwen2", "t5")


def table() -> Table:
    return Table(
        "Every partition of every op of exported programs",
        ["model", "nodes", "compute", "annotated", "different ops", "partitions", "pass", "fail",
         "inconclusive", "skipped nodes", "s"],
        [_row(name) for name in MODELS],
        "Two parts, in process, forward and backward, random weights, two layers.",
    )  # fmt: skip


def _row(name: str) -> list[str]:
    program = exported(name)
    with tempfile.TemporaryDirectory() as outdir:
        began = time.perf_counter()
        found = verify_graph(program, outdir)
        seconds = time.perf_counter() - began
    parts = [row for row in found.rows if row.idx is not None]
    counts = {v: sum(row.verdict is v for row in parts) for v in Verdict}
    share = 100 * found.num_annotated / found.num_compute
    return [
        name,
        str(found.num_nodes),
        str(found.num_compute),
        f"{found.num_annotated} ({share:.0f} %)",
        str(sum(row.idx is None and bool(row.annotation) for row in found.rows)),
        str(len(parts)),
        str(counts[Verdict.PASS]),
        str(sum(count for v, count in counts.items() if v.fails)),
        str(counts[Verdict.INCONCLUSIVE]),
        str(_skipped(found)),
        f"{seconds:.1f}",
    ]


def _skipped(found: Findings) -> int:
    rows = [row for row in found.rows if row.verdict is Verdict.SKIPPED]
    return sum(len(row.node.split()) for row in rows)
