"""Runs that are NaN in both: there is nothing to compare, so that nobody says that they agree."""

from pathlib import Path

import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.outcome import Conclusion


class Lost(nn.Module):
    def __init__(self, is_other: bool) -> None:
        super().__init__()
        self.first, self.last, self.is_other = nn.Linear(6, 8), nn.Linear(8, 3), is_other

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) / 0 * 0
        out: Tensor = self.last(torch.cos(y) * 3 if self.is_other else torch.sin(y) * 2)
        return out


def test_nan_everywhere_proves_nothing(tmp_path: Path) -> None:
    for name, is_other in (("golden", False), ("target", True)):
        torch.manual_seed(0)
        model, x = Lost(is_other), torch.randn(4, 6)
        with dumpcmp.capture(model, tmp_path / name), torch.no_grad():
            model(x)
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert outcome.conclusion is Conclusion.UNKNOWN
    assert "are NaN" in outcome.headline
