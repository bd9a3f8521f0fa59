"""What a capture costs: slow-down of a training step, beside the same step uncaptured."""

from __future__ import annotations

import gc
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tables import Table
from dumpcmp.dumping.capturing import capture

NUM_ROUNDS = 9


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.num_heads = num_heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
        q, k, v = (t.view(batch, length, self.num_heads, -1).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.down(F.gelu(self.up(self.ln2(x))))
        return out


class Transformer(nn.Module):
    """The 4-layer transformer that other tools were measured on: d 256, sequence 128, batch 4."""

    def __init__(self, width: int = 256, num_layers: int = 4, vocabulary: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(num_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x)).mean()
        return out


VARIANTS: list[tuple[str, dict[str, Any] | None, str]] = [
    ("no capture", None, ""),
    ("eager, functions, all values and gradients", {"backward": True}, "1.8"),
    ("eager, functions, all values, no gradients", {}, ""),
    ("eager, modules, all values and gradients", {"backward": True, "level": "modules"}, ""),
    ("eager, modules, outputs only", {"level": "modules", "io": "output"}, "1.1"),
    ("aten, all values", {"mode": "aten"}, ""),
    ("fx, all values and gradients", {"mode": "fx", "backward": True}, ""),
]


def table() -> Table:
    """Measure every variant, interleaved, and set it beside the uncaptured step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, tokens = Transformer(), torch.randint(0, 512, (4, 128))
    cpu: dict[str, list[float]] = {name: [] for name, _, _ in VARIANTS}
    wall: dict[str, list[float]] = {name: [] for name, _, _ in VARIANTS}
    nbytes: dict[str, float] = {}
    for _ in range(NUM_ROUNDS):
        for name, selection, _ in VARIANTS:
            seconds, written = measured(model, tokens, selection)
            cpu[name].append(seconds[0])
            wall[name].append(seconds[1])
            nbytes[name] = written
    base = VARIANTS[0][0]
    rows = [
        [name, _ratio(cpu[name], cpu[base]), _ratio(wall[name], wall[base]),
         f"{nbytes[name] / 2**20:.0f}", goal and f"≤ {goal}"]
        for name, _, goal in VARIANTS
    ]  # fmt: skip
    step = statistics.median(wall[base])
    return Table(
        "capture",
        ["capture", "CPU time", "wall time", "MiB a step", "goal"],
        rows,
        f"Slow-down of one training step (forward and backward, {step * 1e3:.0f} ms uncaptured) of "
        f"a 4-layer transformer, d 256, sequence 128, batch 4, one thread: medians of "
        f"{NUM_ROUNDS} interleaved rounds. CPU time is that of the whole process, with the thread "
        "that writes; the archive lies on the local disk.",
    )


def measured(
    model: nn.Module, tokens: Tensor, selection: dict[str, Any] | None
) -> tuple[tuple[float, float], float]:
    """CPU and wall seconds of one step, and the bytes that it wrote."""
    with tempfile.TemporaryDirectory() as room:
        path = Path(room, "d1")
        context: AbstractContextManager[Any] = (
            nullcontext() if selection is None else capture(model, path, **selection)
        )
        with context:
            one_step(model, tokens.roll(1, 1))  # warm: names, lines and memory; not the values
            seconds = timed(lambda: one_step(model, tokens))
        files = (f for f in path.rglob("*.h5") if f.parent.name == "1")
        return seconds, sum(f.stat().st_size for f in files)


def one_step(model: nn.Module, tokens: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model(tokens).backward()


def timed(run: Callable[[], None]) -> tuple[float, float]:
    gc.collect()
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    run()
    now = resource.getrusage(resource.RUSAGE_SELF)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return cpu, time.perf_counter() - began


def _ratio(times: list[float], base: list[float]) -> str:
    return f"{statistics.median(times) / statistics.median(base):.2f} ×"
