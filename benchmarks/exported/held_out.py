"""Exports and faults that were looked at last, when all else was done."""

from __future__ import annotations

from benchmarks.exported.subjects import SUBJECTS
from benchmarks.exported.table import table_of
from benchmarks.tables import Table


def table() -> Table:
    """Exports that nothing was made with."""
    return table_of("onnx-held-out", [each for each in SUBJECTS if each.is_held_out])
