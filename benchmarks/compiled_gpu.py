"""The demo decoder at a useful size under Triton: certificate, what is seen, what it costs."""

from __future__ import annotations

import platform
import sys

import torch

from benchmarks import compiled
from benchmarks.compiled import COSTS, Case, Made, costs, measured, tokens
from benchmarks.tables import Table
from dumpcmp import demo

NAME = "demo decoder, 8 layers, d 1024"


def decoder() -> Made:
    size = demo.Size(
        vocabulary=8192, width=1024, hidden=2816, num_layers=8, num_heads=16, longest=1024
    )
    return demo.TinyDecoder(size), (tokens(4, 512, 8192),)


def table() -> Table:
    compiled.MODELS[NAME] = decoder
    ways = [("default", False), ("default", True), ("realize", False), ("fusion off", False)]
    rows = []
    for way, training in ways:
        case = Case(NAME, torch.bfloat16, training, way, device="cuda")
        times = costs(case, rounds=3)[2:] if way == "default" else [""] * (len(COSTS) + 2)
        rows.append([*measured(case)[1:], *times])
        print("| " + " | ".join(rows[-1]) + " |", file=sys.stderr, flush=True)
    how = (
        f"{NAME}, bf16, batch 4 x 512, {torch.cuda.get_device_name()}, torch {torch.__version__}, "
        f"Python {platform.python_version()}. Golden is an eager dump on the same device."
    )
    steps = [f"step, {name}" for name in COSTS]
    headings = (*compiled.HEADINGS[1:], *steps, "compilation", "compilation without twins")
    return Table("compiled-gpu", headings, rows, how)
