"""How cost grows with ranks, steps and values, and what workers gain: on archives of tiny tensors.

``DUMPCMP_BENCH_SCALE=1`` takes the largest sizes, too; ``python -m benchmarks.scale RANKS STEPS
OPS`` prints the row of one size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
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
HEADINGS = ("ranks", "steps", "values", *STAGES, "µs a value", "peak MB")
LISTED = 10_000  # steps; more are never listed at once, but compared in spans


def measured(golden: Path, target: Path, stages: Sequence[str]) -> dict[str, dict[str, float]]:
    """CPU seconds and the memory at their end of each stage, taken in a process of its own."""
    run = [sys.executable, "-m", "benchmarks.scale_stages", str(golden), str(target)]
    found: dict[str, dict[str, float]] = {}
    with subprocess.Popen([*run, ",".join(stages)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:  # as they come: what is stopped has told what it came to
            told = json.loads(line)
            found[told.pop("stage")] = told
            print(f"  {line.strip()}", file=sys.stderr, flush=True)
    if child.returncode:
        raise SystemExit(f"{' '.join(run)} ended with {child.returncode}")
    return found


def row(shape: Shape, room: Path, stages: Sequence[str] = STAGES, jobs: int = 1) -> list[str]:
    name = "-".join(map(str, astuple(shape)))
    golden, target = room / f"golden-{name}", room / f"target-{name}"
    write(golden, shape, jobs=jobs)
    write(target, shape, apart=1e-3, shards=shape.ranks > 1, jobs=jobs)
    if shape.steps > LISTED:
        stages = [stage for stage in stages if stage != "pair"]
    print(f"{shape}", file=sys.stderr, flush=True)
    found = measured(golden, target, stages)
    count = shape.num_values + shape.num_values // shape.ranks
    cells = [f"{found[stage]['seconds']:.2f}" if stage in found else "" for stage in STAGES]
    total = sum(each["seconds"] for each in found.values())
    peak = max(each["peak"] for each in found.values())
    return [
        f"{shape.ranks:,}", f"{shape.steps:,}", f"{count:,}", *cells,
        f"{1e6 * total / count:.0f}" if "compare" in found else "", f"{peak:.0f}",
    ]  # fmt: skip


def table() -> Table:
    """The growth table."""
    shapes = (*USUAL, *LARGE) if os.environ.get("DUMPCMP_BENCH_SCALE") else USUAL
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(shape, Path(folder)) for shape in shapes]
    return Table(
        "scale",
        HEADINGS,
        rows,
        "Golden on one rank, the target on so many, of tensors of four elements a rank; every "
        "tenth op is wrong, and run again. Values are of all ranks of both sides. CPU seconds of "
        "one process, torch imported before.",
    )


def main(words: Sequence[str]) -> None:
    """Print the row of one size: RANKS STEPS OPS [JOBS that write the archives [STAGE,...]]."""
    ranks, steps, ops, *rest = words
    jobs, stages = int(rest[0]) if rest else 1, rest[1].split(",") if rest[1:] else STAGES
    with tempfile.TemporaryDirectory() as folder:
        cells = row(Shape(int(ranks), int(steps), int(ops)), Path(folder), stages, jobs)
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
