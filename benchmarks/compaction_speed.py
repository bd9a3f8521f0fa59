"""How fast compaction is beside one read of the same bytes, and what it costs a running program."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.subjects import Transformer
from benchmarks.tables import Table
from dumpcmp.archive.compaction import sealed_parts
from dumpcmp.compacting import compact, nbytes_of
from dumpcmp.dtypes import DTYPES
from dumpcmp.dumping import capture
from dumpcmp.measure.summary import summarise
from dumpcmp.tensors import Value

REPEATS = 3


def spent(run: Callable[[], object]) -> float:
    """CPU seconds of this process, which other load disturbs least."""
    began = time.process_time()
    run()
    return time.process_time() - began


def read_once(path: Path, room: np.ndarray) -> None:
    for part in sealed_parts(path):
        with part.open("rb", buffering=0) as file:
            while file.readinto(room.data):
                pass


def pass_over(numbers: np.ndarray) -> None:
    """One read of memory at full speed: a dot product, block by block."""
    for start in range(0, numbers.size, 16384):
        block = numbers[start : start + 16384]
        np.dot(block, block)


def write(path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Tanh() for _ in range(12)))
    with torch.no_grad(), capture(model, path, level="modules"):
        model(torch.randn(1024, 1024, dtype=dtype))


def offline(name: str) -> list[str]:
    """Rates of one dtype, in GB/s of a core, and ratios to a read of the file and of memory."""
    numbers = np.random.default_rng(0).standard_normal(1 << 22).astype(np.float32)
    bits = numbers if name == "float32" else (numbers.view("<u4") >> 16).astype("<u2")
    value = Value(DTYPES[name], bits)
    room, times = np.empty(1 << 22, np.uint8), {}
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch, "d")
            write(path, getattr(torch, name))
            size = nbytes_of(path)
            for what, run, nbytes in (
                ("read", lambda p=path: read_once(p, room), size),
                ("compact", lambda p=path: compact(p), size),
                ("memory", lambda: pass_over(numbers), numbers.nbytes),
                ("summary", lambda: summarise(value), value.nbytes),
            ):
                times.setdefault(what, []).append(nbytes / spent(run) / 1e9)
    rate = {what: statistics.median(rates) for what, rates in times.items()}
    return [
        f"compaction, {name}", f"{rate['compact']:.2f} GB/s",
        f"{rate['compact'] / rate['read']:.2f} of reading the file ({rate['read']:.1f} GB/s); "
        f"summaries alone {rate['summary']:.2f} GB/s, "
        f"{rate['summary'] / rate['memory']:.2f} of reading memory ({rate['memory']:.1f} GB/s)",
    ]  # fmt: skip


WAYS = {
    "no capture": None,
    "full": {},
    "full, --compact": {"compact": True},
    "--keep summary": {"keep": "summary"},
}


def step(model: torch.nn.Module, tokens: torch.Tensor, options: dict[str, object] | None) -> float:
    """Wall seconds of four steps, without opening and closing the archive."""
    with torch.no_grad(), tempfile.TemporaryDirectory() as room:
        if options is None:
            return _steps(model, tokens)
        with capture(model, Path(room, "d"), level="modules", **options):  # type: ignore[arg-type]
            return _steps(model, tokens)


def _steps(model: torch.nn.Module, tokens: torch.Tensor) -> float:
    began = time.perf_counter()
    for _ in range(4):
        model(tokens)
    return time.perf_counter() - began


def running() -> list[list[str]]:
    """What each way of keeping costs a transformer on the CPU."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, tokens = Transformer(width=512, num_layers=4).eval(), torch.randint(0, 128, (4, 96))
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(REPEATS):
        for name, options in WAYS.items():
            times[name].append(step(model, tokens, options))
    base = statistics.median(times["no capture"])
    return [
        [
            f"step, {name}",
            f"{250 * statistics.median(t):.0f} ms",
            f"{statistics.median(t) / base:.2f} × no capture",
        ]
        for name, t in times.items()
    ]


def table() -> Table:
    rows = [offline("float32"), offline("bfloat16"), *running()]
    return Table(
        "Speed of compaction",
        ["what", "measured", "ratio"],
        rows,
        f"Compaction: CPU time of one process, median of {REPEATS}, 4 MB fp32 or 2 MB bf16 "
        "tensors; it reads the part, checks digests, summarises, writes, and checks the draft. "
        "Steps: 4-layer transformer, d 512, 4 × 96 tokens, one thread, module level, interleaved.",
    )
