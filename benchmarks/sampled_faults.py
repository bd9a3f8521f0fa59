"""The truth table of dumps that keep a few rows of each tensor: what those rows still tell."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import torch

from benchmarks.faults import benign_rows, fault_rows
from benchmarks.tables import Table

ROWS = 8


def table() -> Table:
    """Every fault and every benign variant of `faults`, with whole weights and few rows."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as room:
        faults = list(fault_rows(Path(room), sample_rows=ROWS, weights=True))
        benign = list(benign_rows(Path(room), sample_rows=ROWS, weights=True))
    counts = Counter(row[4].partition(":")[0] for row in faults)
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    return Table(
        "faults, of sampled rows",
        ("model", "dtype", "case", "op", "found", "root", "alarms before it"),
        [row[:7] for row in (*faults, *benign)],
        f"--sample-rows {ROWS} --weights on both sides. Of {len(faults)} faults: {told}.",
    )
