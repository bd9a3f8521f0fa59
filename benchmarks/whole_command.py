"""What ``dumpcmp compare`` costs from start to end, beside another checkout where one is named.

``DUMPCMP_BENCH_BEFORE`` is the root of a checkout, built, that takes turns with this one.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch

from benchmarks.tables import Table
from dumpcmp import demo
from dumpcmp.dumping.capturing import capture
from dumpcmp.faults import Fault, on_output, planted, zero_channel

ROOT = Path(__file__).parents[1]
NUM_TOKENS = 54  # some 20,000 values
ROUNDS = 3
FAULT = Fault("zeroed channel", "layers.1.attn.o_proj", "linear", on_output(zero_channel))


def dumped(path: Path, fault: Fault | None) -> Path:
    """Dump a run of the very small decoder that the samples are of, over more tokens."""
    size = demo.Size(
        vocabulary=64, width=32, hidden=48, num_layers=2, num_heads=2, longest=16 + NUM_TOKENS
    )
    model, _ = demo.build(size)
    torch.manual_seed(0)
    with planted(model, fault) if fault else nullcontext(), capture(model, path):
        demo.generate(model, NUM_TOKENS)
    return path


def seconds(checkout: Path, golden: Path, target: Path, room: Path) -> float:
    """CPU time of one command by the package of `checkout`, with all that it starts."""
    command = [sys.executable, "-m", "dumpcmp", "compare", "--golden-path", str(golden)]
    command += ["--my-path", str(target), "--output", str(room / "out")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    ran = subprocess.run(command, capture_output=True, env=environment, cwd=room, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def row(name: str, golden: Path, target: Path, room: Path) -> list[str]:
    """The best of some rounds, in which this checkout and the other take turns."""
    other = os.environ.get("DUMPCMP_BENCH_BEFORE")
    checkouts = [ROOT, *([Path(other).resolve()] if other else [])]
    found = [[seconds(one, golden, target, room) for one in checkouts] for _ in range(ROUNDS)]
    best = [min(times) for times in zip(*found, strict=True)]
    times = [f"{best[1]:.2f}", f"{best[1] / best[0]:.2f}"] if other else ["", ""]
    return [name, f"{best[0]:.2f}", *times]


def table() -> Table:
    """The whole command, on the samples and on a longer run of the same kind."""
    samples = ROOT / "sample_dumps"
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        golden, wrong = dumped(room / "golden", None), dumped(room / "wrong", FAULT)
        rows = [
            row("samples, the same", samples / "golden", samples / "golden", room),
            row("samples, one op wrong", samples / "golden", samples / "target", room),
            row("20,000 small values, the same", golden, golden, room),
            row("20,000 small values, one op wrong", golden, wrong, room),
        ]
    return Table(
        "command",
        ("what is compared", "CPU s", "before, CPU s", "times"),
        rows,
        "`dumpcmp compare` from start to end, without workers: CPU time of the process, the best "
        f"of {ROUNDS} rounds. Before: the checkout that DUMPCMP_BENCH_BEFORE names, in turns.",
    )
