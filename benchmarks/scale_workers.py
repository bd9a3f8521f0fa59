"""What workers gain: compare, compact and tasks that do nothing, by processes and by Dask.

``python -m benchmarks scale-workers`` takes 1, 2, 4 and so on, up to the cores of the machine;
values are of 2 MB, and with ``DUMPCMP_BENCH_SCALE=1`` of 8 MB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.scale_tasks import NUM_NOTHINGS, WORKS
from benchmarks.synthetic import Shape, write
from benchmarks.tables import Table

LARGE = bool(os.environ.get("DUMPCMP_BENCH_SCALE"))
SHAPE = Shape(steps=16, ops=16, elements=1 << (21 if LARGE else 19))  # 256 values
WHO = ("local", "dask") if find_spec("distributed") else ("local",)


def counts() -> list[int]:
    """1, 2, 4 and so on, and the cores of the machine."""
    cores = os.cpu_count() or 1
    return sorted({1 << power for power in range(cores.bit_length())} | {cores})


def measured(work: str, who: str, workers: int, golden: Path, target: Path) -> dict[str, Any]:
    """Seconds, and CPU seconds here and of workers, of a process of its own."""
    run = [sys.executable, "-m", "benchmarks.scale_tasks"]
    run += [work, who, str(workers), str(golden), str(target)]
    told = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(told.splitlines()[-1])
    return found


def rows(golden: Path, target: Path) -> Iterator[list[str]]:
    for work in WORKS:
        alone = measured(work, "local", 1, golden, target)
        for who in WHO:
            for workers in counts():
                found = measured(work, who, workers, golden, target)
                least = found["here"] + found["there"] / workers
                cells = [
                    work, who, str(workers), f"{found['seconds']:.2f}", f"{found['here']:.2f}",
                    f"{found['there']:.2f}", f"{alone['seconds'] / found['seconds']:.2f}",
                    f"{(alone['here'] + alone['there']) / least:.2f}",
                ]  # fmt: skip
                print(" | ".join(cells), file=sys.stderr, flush=True)
                yield cells


def table() -> Table:
    """The table of speed-ups."""
    with tempfile.TemporaryDirectory() as folder:
        golden, target = Path(folder, "golden"), Path(folder, "target")
        write(golden, SHAPE)
        write(target, SHAPE, apart=1e-6, every=1)
        found = list(rows(golden, target))
    each = SHAPE.elements * 4 >> 20
    return Table(
        "scale-workers",
        ("work", "engine", "workers", "seconds", "CPU here", "CPU of workers", "speed-up",
         "by CPU"),
        found,
        f"Two runs of {SHAPE.steps * SHAPE.ops * each} MB in values of {each} MB, all of which "
        f"differ in their last bits, on {os.cpu_count()} cores; *nothing* is {NUM_NOTHINGS} tasks "
        "that do nothing. Workers had begun before. *Speed-up* is of the time on the clock over "
        "one process of `local`, *by CPU* what it would be if nobody else used the cores: CPU "
        "seconds of that process over those here and a worker's share of those of all workers.",
    )  # fmt: skip
