"""One fault among a great many ops, or elements, is found where it is.

``make fuzz`` has 100,000 ops, and 100,000,000 elements.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dumpcmp

OPS = int(os.environ.get("DUMPCMP_OPS", "300"))
ELEMENTS = int(os.environ.get("DUMPCMP_ELEMENTS", "1000000"))


class ManyOps(nn.Module):
    """Tiny ops, none of which makes a difference smaller."""

    def __init__(self, fault: int = -1) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x: Any) -> Any:
        for number in range(OPS):
            x = -x if number % 3 == 2 else x - 0.5 if number % 3 else x + 0.5
            if number == self.fault:
                x = x * 1.01
        return x


class OneElement(nn.Module):
    """Adds to one element, if it is told to."""

    def __init__(self, place: int, off: float) -> None:
        super().__init__()
        self.place, self.off = place, off

    def forward(self, x: Any) -> Any:
        y = x * 2
        y[self.place] += self.off
        return y + 1


def dumped(path: Path, model: nn.Module, x: Any) -> Path:
    with dumpcmp.capture(model, path), torch.no_grad():
        model(x)
    return path


def test_one_op_of_many(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 4)
    golden = dumped(tmp_path / "golden", ManyOps(), x)
    assert dumpcmp.compare(golden, dumped(tmp_path / "same", ManyOps(), x)).exit_code == 0
    wrong = dumpcmp.compare(golden, dumped(tmp_path / "wrong", ManyOps(OPS // 2), x))
    assert wrong.exit_code == 1
    root = wrong.first_divergence
    assert root is not None and root.target_key is not None
    assert root.target_key.op.endswith("/mul")


def test_one_element_of_many(tmp_path: Path) -> None:
    place = ELEMENTS * 2 // 3
    torch.manual_seed(0)
    x = torch.randn(ELEMENTS)
    x[place] = 1.0
    golden = dumped(tmp_path / "golden", OneElement(place, 0.0), x)
    outcome = dumpcmp.compare(golden, dumped(tmp_path / "target", OneElement(place, 1e-4), x))
    assert outcome.exit_code == 1
    whole = [row for row in outcome.rows if row.metrics and row.metrics.count == ELEMENTS]
    assert any(row.metrics and row.metrics.worst == (place,) for row in whole)
