"""The same table for processes that share one GPU, or the CPU where there is none."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.partitioned.campaign import place
from benchmarks.partitioned.corpus import ONE_DEVICE
from benchmarks.partitioned.table import HEADINGS, measured, run_goldens, run_ranks
from benchmarks.tables import Table
from dumpcmp.comparing import compare
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.rows import having

_TOLD = 6  # odd rows of a clean run


def table() -> Table:
    """Every subject, each in processes of its own: what one cannot run the others can."""
    with tempfile.TemporaryDirectory() as made:
        room, names = Path(made), list(ONE_DEVICE)
        run_goldens(room, names)
        rows = [_row(room, name) for name in names]
    has_gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if has_gpu else "the CPU"
    how = f"Two processes on gloo share {name}, torch {torch.__version__}."
    return Table("Partitioned runs on one device", (*HEADINGS, "s"), rows, how)


def _told(room: Path, name: str) -> list[str]:
    """The answer to the clean run, and what fails there or is open, if anything does."""
    outcome = compare(room / f"golden-{ONE_DEVICE[name].golden}", room / place(name))
    odd = [*outcome.failures, *having(outcome.rows, Verdict.INCONCLUSIVE)]
    return [f"{name}: {outcome.word}", *(f"  {outcome.sentence(row)}" for row in odd[:_TOLD])]


def _row(room: Path, name: str) -> list[str]:
    begun = time.monotonic()
    try:
        run_ranks(room, [name])
    except RuntimeError as error:
        print(error, file=sys.stderr, flush=True)
        return [name, str(ONE_DEVICE[name].ranks), "did not run", *[""] * (len(HEADINGS) - 2)]
    row, found = measured(room, name)
    for line in _told(room, name):
        print(line, file=sys.stderr, flush=True)
    for one in found:
        print(one.grade, one.name, one.said[:200], sep=" | ", file=sys.stderr, flush=True)
    row.append(f"{time.monotonic() - begun:.0f}")
    print("| " + " | ".join(row) + " |", file=sys.stderr, flush=True)
    return row
