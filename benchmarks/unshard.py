"""What putting shards together costs a comparison, beside the same comparison of whole values."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import Table
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.layouts import parse_layout, parse_mesh
from dumpcmp.nouns.record import Call, Record
from dumpcmp.nouns.value import DTYPES, Value
from tests.align.mesh.sharding import shard

SHAPE = (4, 512, 2048)  # 16 MiB in float32
NUM_VALUES = 6
REPEATS = 3
LAYOUTS = {
    "sharded along the last dim": "b s h[tp]",
    "sharded along the sequence": "b s[tp] h",
    "merged parts": "b s (gate up)[tp:interleaved]",
    "partial terms": "b s h[tp:partial]",
    "replicas": "b s h",
}
MEASURED = """
import sys, time, tracemalloc
from dumpcmp.comparing import compare
if sys.argv[3] == "memory":
    tracemalloc.start()
began = time.process_time()
outcome = compare(sys.argv[1], sys.argv[2])
assert outcome.exit_code == 0, outcome.tally
seconds = time.process_time() - began
print(tracemalloc.get_traced_memory()[1] / 2**20 if sys.argv[3] == "memory" else seconds)
"""


class Elements:
    """The elements of an array, for the writer."""

    def __init__(self, bits: NDArray[np.generic]) -> None:
        self.bits = np.ascontiguousarray(bits)

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes

    def copy_into(self, room: memoryview) -> Callable[[], None] | None:
        np.frombuffer(room, np.uint8)[:] = self.bits.reshape(-1).view(np.uint8)
        return None


def values(noise: float) -> list[Value]:
    """Random values, and the same with rounding noise of this size."""
    rng, other = np.random.default_rng(0), np.random.default_rng(1)
    found = []
    for _ in range(NUM_VALUES):
        bits = rng.standard_normal(SHAPE, np.float32)
        bits *= 1 + noise * other.standard_normal(SHAPE, np.float32)
        found.append(Value(DTYPES["float32"], bits))
    return found


def write(path: Path, held: list[list[tuple[str, Value]]]) -> None:
    """An archive of what each rank holds: its values with their layouts."""
    for rank, mine in enumerate(held):
        with ArchiveWriter(path, rank=rank, world_size=len(held)) as out:
            for n, (layout, value) in enumerate(mine):
                call = Call("Model", 0, Op(f"layers.{n}"), 0, n)
                out.call(call)
                key = Key("Model", 0, call.op, 0, "output.0")
                record = Record(key, n, "float32", value.shape, rank=rank, layout=layout)
                out.put(record, Elements(value.bits))


def partitioned(layout: str, recorded: bool) -> list[list[tuple[str, Value]]]:
    """The noisy values over four ranks."""
    ranks: list[list[tuple[str, Value]]] = [[] for _ in range(4)]
    for value in values(1e-7):
        for one, share in shard(value, parse_layout(layout), parse_mesh("tp=4")):
            ranks[one.rank].append((str(one.layout) if recorded else "", share))
    return ranks


def measured(golden: Path, target: Path, what: str) -> float:
    """CPU seconds, or peak MiB of allocations, of one comparison in a process of its own."""
    command = [sys.executable, "-c", MEASURED, str(golden), str(target), what]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def table() -> Table:
    with tempfile.TemporaryDirectory() as room:
        targets = write_all(Path(room))
        golden = Path(room, "golden")
        seconds: dict[str, list[float]] = {name: [] for name in targets}
        for _ in range(REPEATS):
            for name, path in targets.items():
                seconds[name].append(measured(golden, path, "seconds"))
        peaks = {name: measured(golden, path, "memory") for name, path in targets.items()}
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    base = medians["whole values"]
    return Table(
        "Unsharding",
        ("target", "CPU time", "peak of allocations"),
        [
            (name, f"{median / base:.2f} x ({median:.2f} s)", f"{peaks[name]:.0f} MiB")
            for name, median in medians.items()
        ],
        how=(
            f"`compare` of {NUM_VALUES} values of 16 MiB, golden whole, the target on four ranks, "
            f"beside the same target whole; medians of {REPEATS} interleaved runs. Goal: at most "
            "1.5 times where the layout is known, and one whole value of memory."
        ),
    )


def write_all(root: Path) -> dict[str, Path]:
    """Golden, and the targets by name: whole, and over four ranks in every layout."""
    write(root / "golden", [[("", value) for value in values(0)]])
    write(root / "whole", [[("", value) for value in values(1e-7)]])
    targets = {"whole values": root / "whole"}
    for name, layout in LAYOUTS.items():
        for how in ("recorded", "solved"):
            targets[f"{name}, {how}"] = root / f"{name} {how}"
            write(targets[f"{name}, {how}"], partitioned(layout, how == "recorded"))
    return targets
