"""Table "weights": twelve faults in loaded weights, each named, and the time beside a read."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.tables import Table
from dumpcmp.weights import compare_weights
from tests.weights.checkpoints import PLANTED, as_engine, checkpoint, on_ranks, save, save_ranks

REPEATS = 5
WIDTH, HIDDEN, NUM_LAYERS = 2048, 5632, 10  # about 1 GB in bfloat16


def faults(room: Path) -> list[list[str]]:
    golden = save(checkpoint(), room / "golden.safetensors")
    older = save(checkpoint(seed=1), room / "older.safetensors")
    rows = []
    for planted in PLANTED:
        mine = as_engine(checkpoint())
        planted.plant(mine)
        report = compare_weights(golden, save(mine, room / "mine.safetensors"), older=older)
        rows.append([planted.name, "; ".join(f"{r.verdict}: {r.detail}" for r in report.failures)])
    ranks = save_ranks(on_ranks(as_engine(checkpoint())), room / "ranks")
    for name, mine_path in {
        "merged and stacked, two ranks": ranks,
        "the same file": golden,
    }.items():
        rows.append([f"nothing: {name}", compare_weights(golden, mine_path).headline])
    return rows


def large(room: Path) -> tuple[Path, Path, Path]:
    """A checkpoint of 1 GB, a copy of it, and an engine's form of it."""
    torch.manual_seed(0)
    split: dict[str, torch.Tensor] = {}
    merged: dict[str, torch.Tensor] = {}
    for i in range(NUM_LAYERS):
        layer = f"model.layers.{i}."
        own = {
            name: torch.randn(shape).bfloat16()
            for name, shape in {
                "q": (WIDTH, WIDTH), "k": (512, WIDTH), "v": (512, WIDTH), "o": (WIDTH, WIDTH),
                "gate": (HIDDEN, WIDTH), "up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN),
            }.items()
        }  # fmt: skip
        split |= {f"{layer}mlp.{name}_proj.weight": tensor for name, tensor in own.items()}
        merged[f"{layer}mlp.qkv_proj.weight"] = torch.cat([own[n] for n in ("q", "k", "v")])
        merged[f"{layer}mlp.gate_up_proj.weight"] = torch.cat([own["gate"], own["up"]])
        merged |= {f"{layer}mlp.{n}_proj.weight": own[n] for n in ("o", "down")}
    split["model.embed_tokens.weight"] = torch.randn(32_000, WIDTH).bfloat16()
    merged["model.embed_tokens.weight"] = split["model.embed_tokens.weight"]
    wide = {name: tensor.float() for name, tensor in split.items()}
    return (
        save(split, room / "golden.safetensors"),
        save(merged, room / "merged.safetensors"),
        save(wide, room / "wide.safetensors"),
    )


def read(*paths: Path) -> None:
    """Every byte once, into one buffer."""
    room = bytearray(8 << 20)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(room):
                pass


def speed(room: Path) -> list[list[str]]:
    golden, merged, wide = large(room)
    copy = golden.with_name("copy.safetensors")
    copy.write_bytes(golden.read_bytes())
    rows = []
    ways = {"the same form": copy, "merged projections": merged, "bfloat16 to float32": wide}
    for name, mine in ways.items():
        times: list[tuple[float, float]] = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            read(golden, mine)
            between = time.perf_counter()
            assert compare_weights(golden, mine).passed
            times.append((between - began, time.perf_counter() - between))
        reads, compares = (statistics.median(each) for each in zip(*times, strict=True))
        ratio = statistics.median(b / a for a, b in times)
        nbytes = (golden.stat().st_size + mine.stat().st_size) / 1e9
        rows.append([f"time, {name}, {nbytes:.1f} GB", f"{compares:.2f} s, {ratio:.2f} x a read "
                     f"of both ({reads:.2f} s)"])  # fmt: skip
    return rows


def table() -> Table:
    with tempfile.TemporaryDirectory(dir=os.environ.get("DUMPCMP_BENCH_DIR")) as name:
        rows = [*faults(Path(name)), *speed(Path(name))]
    return Table("weights", ["what was planted", "what is said"], rows, HOW)


HOW = (
    "Faults are planted in an engine's form of a small checkpoint: merged qkv, stacked experts. "
    "Times are of `compare_weights` with two files in the page cache; a read takes every byte of "
    f"both once, into one buffer. Medians of {REPEATS} rounds in which both take turns."
)
