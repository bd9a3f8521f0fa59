"""Gradients of what is moved, to another dtype or device, are known where calls computed them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.shadows.proving import ProofAnswer
from tests.shadows.proved import prove


class Moving(nn.Module):
    """Layers of which the second may compute in another dtype, as if it lay elsewhere."""

    def __init__(self, dtype: torch.dtype, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))
        self.second.to(dtype)
        self._dtype, self._scale = dtype, scale

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        x = x + (self.second(x.to(self._dtype)) * self._scale).to(torch.float32)
        y: Tensor = self.third(torch.tanh(x))
        return y


def dumped(path: Path, mode: str, dtype: torch.dtype, scale: float = 0.5) -> Path:
    model = Moving(dtype, scale)
    with dumpcmp.capture(model, path, mode=mode, backward=True):
        model(torch.linspace(-1, 1, 32).view(4, 8)).square().mean().backward()
    return path


@pytest.mark.parametrize("mode", ["eager", "aten"])
def test_a_move_changes_no_gradient_and_hides_no_fault(mode: str, tmp_path: Path) -> None:
    golden = dumped(tmp_path / "d1", mode, torch.float32)
    target = dumped(tmp_path / "d2", mode, torch.float64)
    assert prove(golden, target).answer is ProofAnswer.SAME
    assert prove(target, golden).answer is ProofAnswer.SAME
    wrong = dumped(tmp_path / "d3", mode, torch.float64, scale=0.25)
    first = prove(golden, wrong).first
    assert first is not None and first.answer is ProofAnswer.DIFFERENT_PROGRAM
    assert first.op.function.removeprefix("aten.") == "mul"
