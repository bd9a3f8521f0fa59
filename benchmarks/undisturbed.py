"""Whether captures leave programs as they are: many styles, captured and not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from benchmarks import style_runs, styles
from benchmarks.tables import Table

MODES = ("eager", "fx", "aten")
AGAIN = "uncaptured, again"  # what differs from itself could not be told from a disturbance
HEADINGS = ("style", *MODES)
_REMARKS = "remarks"


def names() -> list[str]:
    """The styles; those whose names hold a word of the variable STYLES, where it is set."""
    words = [word for word in os.environ.get("STYLES", "").split(",") if word]
    return [name for name in styles.STYLES if not words or any(word in name for word in words)]


def runs(mode: str, wanted: Sequence[str]) -> dict[str, Any]:
    """What each style did, in processes forked from one."""
    words = [sys.executable, "-m", "benchmarks.style_runs", mode, *wanted]
    found: dict[str, Any] = {}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        for line in process.stdout or ():
            name, _, seen = json.loads(line)
            found[name] = seen
            print(mode, name, file=sys.stderr, flush=True)
    return found


def told(wanted: Any, seen: Any) -> str:
    """The first difference between a run and the uncaptured one; empty: there is none."""
    return style_runs.first_difference(without_remarks(wanted), without_remarks(seen))


def without_remarks(seen: Any) -> Any:
    """What the program did, without what the capture warned of."""
    if not isinstance(seen, dict):
        return seen
    return {name: without_remarks(one) for name, one in seen.items() if name != _REMARKS}


def row(name: str, each: dict[str, dict[str, Any]]) -> list[str]:
    wanted = each[style_runs.UNCAPTURED].get(name)
    if again := told(wanted, each[AGAIN].get(name)):
        return [name, *[f"not repeatable: {again}"] * len(MODES)]
    return [name, *(told(wanted, each[mode].get(name)) or "same" for mode in MODES)]


def table() -> Table:
    wanted = names()
    kinds = (style_runs.UNCAPTURED, AGAIN, *MODES)
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1)) as pool:
        found = pool.map(
            lambda kind: runs(style_runs.UNCAPTURED if kind == AGAIN else kind, wanted), kinds
        )
        each = dict(zip(kinds, found, strict=True))
    rows = [[cell.replace("|", "/") for cell in row(name, each)] for name in wanted]
    num_runs = len(rows) * len(MODES)
    num_other = sum(cell != "same" for line in rows for cell in line[1:])
    how = (
        f"torch {torch.__version__}, CPU. Each of {len(rows)} styles runs uncaptured twice and in "
        "each mode with `backward=True`, in processes of their own. Compared to the bit: results, "
        "gradients, weights and buffers, generators, exceptions with the program's lines, warnings "
        "with their places, hooks and attributes of modules, stdout, modes and settings of torch, "
        "the recursion depth left, what others stand in for. "
        f"{num_other} of {num_runs} captured runs differ."
    )
    return Table("undisturbed", HEADINGS, rows, how)
