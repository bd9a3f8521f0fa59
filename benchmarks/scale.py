"""How cost grows with ranks, steps and values, and what workers gain: on archives of tiny tensors.

``DUMPCMP_BENCH_SCALE=1`` takes the largest sizes, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import astuple
from pathlib import Path

from benchmarks.synthetic import Shape, write
from benchmarks.tables import Table

USUAL = (
    Shape(8, 1, 50),
    Shape(64, 1, 50),
    Shape(512, 1, 50),
    Shape(1, 10, 10),
    Shape(1, 100, 10),
    Shape(1, 1_000, 10),
    Shape(1, 1, 2_500),
    Shape(1, 1, 25_000),
)
LARGE = (
    Shape(4_096, 1, 50),
    Shape(1, 10_000, 10),
    Shape(1, 100_000, 10),
    Shape(1, 1, 250_000),
    Shape(1, 1, 2_500_000),
)
STAGES = ("open", "pair", "compare", "report")


def measured(golden: Path, target: Path) -> dict[str, dict[str, float]]:
    """CPU seconds and the memory at their end of each stage, taken in a process of its own."""
    run = [sys.executable, "-m", "benchmarks.scale_stages", str(golden), str(target)]
    told = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    found: dict[str, dict[str, float]] = json.loads(told.splitlines()[-1])
    return found


def row(shape: Shape, room: Path) -> list[str]:
    name = "-".join(map(str, astuple(shape)))
    golden, target = room / f"golden-{name}", room / f"target-{name}"
    write(golden, shape)
    write(target, shape, apart=1e-3, shards=shape.ranks > 1)
    found = measured(golden, target)
    count = shape.num_values + shape.num_values // shape.ranks
    cells = [f"{found[stage]['seconds']:.2f}" for stage in STAGES]
    total = sum(found[stage]["seconds"] for stage in STAGES)
    peak = max(found[stage]["peak"] for stage in STAGES)
    return [
        f"{shape.ranks:,}", f"{shape.steps:,}", f"{count:,}", *cells,
        f"{1e6 * total / count:.0f}", f"{peak:.0f}",
    ]  # fmt: skip


def table() -> Table:
    """The growth table."""
    shapes = (*USUAL, *LARGE) if os.environ.get("DUMPCMP_BENCH_SCALE") else USUAL
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(shape, Path(folder)) for shape in shapes]
    return Table(
        "scale",
        ("ranks", "steps", "values", *STAGES, "µs a value", "peak MB"),
        rows,
        "Golden on one rank, the target on so many, of tensors of four elements a rank; every "
        "tenth op is wrong, and run again. Values are of all ranks of both sides. CPU seconds of "
        "one process, torch imported before.",
    )
