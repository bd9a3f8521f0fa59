"""Runs on 64 and 512 ranks: how long a comparison takes, and how many lines its report has.

Each rank has its share of the batch and needs no other, so one process is all of them in turn.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.tables import Table
from dumpcmp import capture, compare, set_rank
from dumpcmp.report.terminal import show

LENGTH, WIDTH, LAYERS = 4, 16, 4
SIZES = (64, 512)
Fault = Callable[[nn.Module, int, int], None]


class Mlp(nn.Module):
    """Layers of a norm, two products and a sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(WIDTH),
                    "up": nn.Linear(WIDTH, WIDTH),
                    "down": nn.Linear(WIDTH, WIDTH),
                }
            )
            for _ in range(LAYERS)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleDict)
            x = x + layer["down"](torch.relu(layer["up"](layer["norm"](x))))
        return x


def _one_stale(model: nn.Module, rank: int, size: int) -> None:
    """The last rank but one has another weight."""
    if rank == size - 2:
        model.get_submodule("layers.2.up").weight.data.mul_(1.05)  # type: ignore[operator]


def _half_wrong(model: nn.Module, rank: int, size: int) -> None:  # noqa: ARG001
    """Every second rank has another epsilon."""
    if rank % 2:
        model.get_submodule("layers.2.norm").eps = 0.1  # type: ignore[assignment]


FAULTS: dict[str, Fault] = {
    "clean": lambda *_: None,
    "one rank has a stale weight": _one_stale,
    "every second rank has another epsilon": _half_wrong,
}


def _run(path: Path, size: int, fault: Fault) -> None:
    batch = torch.randn(size, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    for rank in range(size):
        model = Mlp()
        fault(model, rank, size)
        set_rank(rank, size)
        with capture(model, path, weights=True), torch.no_grad():
            model(batch[rank : rank + 1])


def _whole(path: Path, size: int) -> None:
    set_rank(0, 1)
    batch = torch.randn(size, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    model = Mlp()
    with capture(model, path, weights=True), torch.no_grad():
        model(batch)


def measured(room: Path, size: int, name: str) -> list[str]:
    """A row of the table."""
    golden, target = room / f"golden-{size}", room / f"{size}-{name}".replace(" ", "-")
    if not golden.exists():
        _whole(golden, size)
    _run(target, size, FAULTS[name])
    begun = time.process_time()
    outcome = compare(golden, target)
    seconds = time.process_time() - begun
    page = io.StringIO()
    show(outcome, Console(file=page, width=100))
    lines = page.getvalue().splitlines()
    first = outcome.first_divergence
    where = f"{first.key.op}: {first.reason}" if first else ""
    return [
        str(size), name, outcome.conclusion, f"{seconds:.1f}", str(len(outcome.rows)),
        str(len(lines)), where,
    ]  # fmt: skip


def table() -> Table:
    """Both sizes, clean and with faults."""
    headings = ("ranks", "run", "answer", "s", "rows", "lines of 100 columns", "first divergence")
    with tempfile.TemporaryDirectory() as place:
        rows = [measured(Path(place), size, name) for size in SIZES for name in FAULTS]
    return Table("Partitioned runs on many ranks", headings, rows, "One process is every rank.")
