"""How fast compaction is beside one read of the same bytes, and what it costs a running program."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.subjects import Transformer
from benchmarks.tables import Table
from dumpcmp.dumping.capturing import capture
from dumpcmp.dumping.retention import Retention

REPEATS = 5
NBYTES = 256 << 20  # of one archive
STEPS = 8


def write(path: Path, dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    num_layers = NBYTES // (rows * 1024 * dtype.itemsize)
    model = torch.nn.Sequential(*(torch.nn.Tanh() for _ in range(num_layers)))
    with torch.no_grad(), capture(model, path, level="modules"):
        model(torch.randn(rows, 1024, dtype=dtype))


def rates(dtype: torch.dtype, rows: int, way: str) -> dict[str, float]:
    """GB/s of a read and of a compaction, in a process of their own."""
    with tempfile.TemporaryDirectory() as room:
        path = Path(room, "d")
        write(path, dtype, rows)
        command = [sys.executable, "-m", "benchmarks.compact_pass", str(path), way]
        found: dict[str, float] = json.loads(subprocess.check_output(command))
    return found


OFFLINE = {
    "fp32, tensors of 4 MB": (torch.float32, 1024, "compiled"),
    "fp32, tensors of 16 MB": (torch.float32, 4096, "compiled"),
    "bf16, tensors of 4 MB": (torch.bfloat16, 2048, "compiled"),
    "bf16, tensors of 16 MB": (torch.bfloat16, 8192, "compiled"),
    "fp32, 16 MB, without a compiler": (torch.float32, 4096, "numpy"),
    "bf16, 16 MB, without a compiler": (torch.bfloat16, 8192, "numpy"),
}


def offline() -> list[list[str]]:
    """Rates of compaction beside one read of the same file, interleaved."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in OFFLINE}
    for _ in range(REPEATS):
        for name, how in OFFLINE.items():
            found[name].append(rates(*how))
    rows = []
    for name, runs in found.items():
        read, done = (statistics.median(run[what] for run in runs) for what in ("read", "compact"))
        ratio = statistics.median(run["compact"] / run["read"] for run in runs)
        rows.append(
            [
                f"compaction, {name}",
                f"{done:.2f} GB/s",
                f"{ratio:.2f} of a read ({read:.1f} GB/s)",
            ]
        )
    return rows


WAYS: dict[str, dict[str, Any] | None] = {
    "no capture": None,
    "full": {},
    "full, --compact": {"keep": Retention(compact=True)},
    "--keep summary": {"keep": "summary"},
}


def step(
    model: torch.nn.Module, tokens: torch.Tensor, options: dict[str, Any] | None
) -> tuple[float, float]:
    """Wall seconds of the steps, and CPU seconds of this process until the archive is closed."""
    with torch.no_grad(), tempfile.TemporaryDirectory() as room, ExitStack() as capturing:
        if options is not None:
            capturing.enter_context(capture(model, Path(room, "d"), level="modules", **options))
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(STEPS):
            model(tokens)
        wall = time.perf_counter() - began
        capturing.close()
        return wall / STEPS, (time.process_time() - cpu) / STEPS


def running() -> list[list[str]]:
    """What each way of keeping costs a transformer on the CPU."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, tokens = Transformer(width=512, num_layers=4).eval(), torch.randint(0, 128, (4, 96))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for turn in range(REPEATS + 1):
        for name, options in WAYS.items():
            taken = step(model, tokens, options)
            if turn:  # the first round warms up
                times[name].append(taken)
    walls, cpus = (
        {name: statistics.median(pair[which] for pair in pairs) for name, pairs in times.items()}
        for which in (0, 1)
    )
    return [
        [
            f"step, {name}",
            f"{1000 * walls[name]:.0f} ms, {1000 * cpus[name]:.0f} ms of CPU",
            f"{walls[name] / walls['no capture']:.2f} × no capture, "
            f"{cpus[name] / cpus['no capture']:.2f} × in CPU",
        ]
        for name in WAYS
    ]


def table() -> Table:
    return Table(
        "Speed of compaction",
        ["what", "measured", "ratio"],
        [*offline(), *running()],
        "Compaction: CPU time of a process that does nothing else; it checks digests, summarises, "
        "writes, checks the draft, and frees the part. A read: the same parts once, from the page "
        "cache into a buffer of 4 MB, in the same process. Steps: 4-layer transformer, d 512, "
        f"4 × 96 tokens, one thread, module level; wall time of {STEPS} steps, CPU time of their "
        f"process until the archive is closed. Medians of {REPEATS} interleaved rounds.",
    )
