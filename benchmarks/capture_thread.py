"""What a value costs the thread of the program that is captured, where Python is all that costs."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks.capture import Transformer, one_step
from benchmarks.tables import Table
from dumpcmp.archive.read.reader import Archive
from dumpcmp.dumping.capturing import capture

NUM_STEPS, NUM_ROUNDS = 20, 3
VARIANTS: dict[str, dict[str, Any]] = {
    "functions, all values and gradients": {"backward": True},
    "functions, all values, no gradients": {},
    "modules, outputs only": {"level": "modules", "io": "output"},
    "functions, `--keep summary`": {"keep": "summary"},
    "modules, `--keep summary`": {"level": "modules", "keep": "summary"},
}


def table() -> Table:
    """Measure every variant, interleaved with the step alone."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, tokens = Transformer(width=32), torch.randint(0, 512, (1, 16))

    def run() -> None:
        one_step(model, tokens)

    spent: dict[str, list[tuple[float, float, float]]] = {name: [] for name in VARIANTS}
    for _ in range(NUM_ROUNDS):
        for name, selection in VARIANTS.items():
            bare = seconds(run, nullcontext())
            with tempfile.TemporaryDirectory() as room:
                path = Path(room, "d1")
                own, whole = seconds(run, capture(model, path, **selection))
                num_values = len(Archive(path)) / (NUM_STEPS + 2)
            spent[name].append(
                ((own - bare[0]) / num_values, (whole - bare[1]) / num_values, own / bare[0])
            )
    rows = []
    for name, each in spent.items():
        own, whole, ratio = (statistics.median(column) for column in zip(*each, strict=True))
        rows.append([name, f"{own * 1e6:.0f}", f"{whole * 1e6:.0f}", f"{ratio:.1f} ×"])
        print(rows[-1], flush=True)
    return Table(
        "capture-thread",
        ["capture", "thread, µs a value", "process, µs a value", "step, of no capture"],
        rows,
        "CPU time of the program's thread, and of the whole process, for each value of a training "
        "step (forward and backward) of a 4-layer transformer, d 32, sequence 16, batch 1, beyond "
        f"that of the step alone: medians of {NUM_STEPS} steps in {NUM_ROUNDS} rounds.",
    )


def seconds(run: Callable[[], None], around: AbstractContextManager[Any]) -> tuple[float, float]:
    """CPU seconds of one step: of this thread, and of the process."""
    spent = []
    with around:
        for _ in range(NUM_STEPS + 2):  # the first names what the others know
            own, whole = time.thread_time(), time.process_time()
            run()
            spent.append((time.thread_time() - own, time.process_time() - whole))
    own, whole = (statistics.median(column) for column in zip(*spent[2:], strict=True))
    return own, whole
