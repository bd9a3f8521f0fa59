"""Two small runs to share among workers, and tasks that end the worker which does them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.outcome import Outcome

MARK = "DUMPCMP_TEST_MARK"  # set in workers: a file


class Net(nn.Module):
    """A few layers, the second of which can be made wrong."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x)) * (self.scale if number == 2 else 1.0)
        return x


def dump_two(room: Path) -> tuple[Path, Path]:
    """Golden, and a target that goes wrong in its third layer."""
    for name, scale in (("golden", 1.0), ("target", 1.01)):
        torch.manual_seed(0)
        net = Net(scale)
        with dumpcmp.capture(net, room / name):
            for step in range(3):
                net(torch.full((4, 24), 0.1 * step))
    return room / "golden", room / "target"


def told(outcome: Outcome) -> list[str]:
    """All that an outcome says of its rows."""
    return [
        f"{row.key} {row.judgement} {row.origin} {row.root} {row.metrics} {row.replay}"
        for row in outcome.rows
    ]


def deadly(golden: NDArray[np.float64], target: NDArray[np.float64]) -> float:
    """A metric that ends the worker which asks for it first, where a mark is to be made."""
    mark = Path(os.environ[MARK]) if MARK in os.environ else None
    if mark is not None and not mark.exists():
        mark.touch()
        os.kill(os.getppid(), signal.SIGKILL)
    return float(abs(target - golden).max())


def die(_task: object) -> None:
    """End this process."""
    os.kill(os.getpid(), signal.SIGKILL)
