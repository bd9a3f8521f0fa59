"""What opening a large archive costs, to the first Record: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.synthetic import Shape, write
from benchmarks.tables import Table

USUAL = (Shape(steps=100, ops=500), Shape(steps=1, ops=50_000))
LARGE = (Shape(steps=500, ops=1_000), Shape(steps=1, ops=500_000))

OPENS = """
import json, sys, time
from pathlib import Path
from dumpcmp.archive.read.reader import Archive
def told(began):
    state = Path("/proc/self/status").read_text()  # ru_maxrss is also what the parent had
    peak = int(state.partition("VmHWM:")[2].split()[0]) / 1024
    return f"{time.process_time() - began:.3f} s, {peak:.0f} MB"
began = time.process_time()
archive = Archive(sys.argv[1])
found = [repr(archive) and told(began)]
(model,) = archive.models
step = archive.steps(model)[-1]
key = next(iter(archive.keys_of(model, step)))
assert archive[key].key == key
print(json.dumps([*found, told(began)]))
"""


def row(shape: Shape, room: Path) -> list[str]:
    path = room / f"{shape.steps}-{shape.ops}"
    write(path, shape)
    run = [sys.executable, "-c", OPENS, str(path)]
    told = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    return [f"{shape.num_values:,}", f"{shape.steps:,}", *json.loads(told)]


def table() -> Table:
    """Opening by the number of values and steps."""
    shapes = LARGE if os.environ.get("DUMPCMP_BENCH_SCALE") else USUAL
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(shape, Path(folder)) for shape in shapes]
    return Table(
        "open",
        ("values", "steps", "opened", "the first Record of the last step"),
        rows,
        "CPU time since the import, and the peak of memory, of a process that does nothing else. "
        "`DUMPCMP_BENCH_SCALE=1` takes 1,000,000 values.",
    )
