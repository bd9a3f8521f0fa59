"""The same table for subjects that nothing was tuned on."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.partitioned import table as tuned
from benchmarks.partitioned.corpus import HELD_OUT
from benchmarks.tables import Table


def table() -> Table:
    """Every held-out subject, clean and with its faults."""
    return replace(tuned.table(list(HELD_OUT)), title="Partitioned runs, held out")
