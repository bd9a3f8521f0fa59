"""Random ops that draw other numbers than golden's: nobody can say that they agree."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.row import Verdict


class Dropping(nn.Module):
    def __init__(self, dropout: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.dropout = nn.Linear(16, 32), nn.Linear(32, 8), dropout

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.dropout(self.first(x))).softmax(-1)
        return out


def dumped(path: Path, dropout: nn.Module, seed: int, rounded: bool = False) -> Path:
    torch.manual_seed(3)
    model, x = Dropping(dropout), torch.randn(4, 6, 16)
    if rounded:
        x = x.double().mul(3.0).div(3.0).float()
    torch.manual_seed(seed)
    with dumpcmp.capture(model, path), torch.no_grad():
        model(x)
    return path


@pytest.mark.parametrize("dropout", [nn.Dropout(0.3), nn.Dropout1d(0.3)])
def test_another_seed_is_no_rounding(dropout: nn.Module, tmp_path: Path) -> None:
    golden = dumped(tmp_path / "golden", dropout, 5)
    outcome = dumpcmp.compare(golden, dumped(tmp_path / "target", dropout, 6))
    assert not outcome.passed
    assert "the generators were in different states" in outcome.headline
    ends = [row for row in outcome.rows if str(row.key.op) == "<root>" and row.key.slot.is_output]
    assert ends
    assert all(row.verdict is Verdict.INCONCLUSIVE for row in ends)


def test_the_same_seed_still_passes(tmp_path: Path) -> None:
    golden = dumped(tmp_path / "golden", nn.Dropout(0.3), 5)
    assert dumpcmp.compare(golden, dumped(tmp_path / "target", nn.Dropout(0.3), 5, True)).passed


def test_a_generator_that_nobody_draws_from_is_no_doubt(tmp_path: Path) -> None:
    golden = dumped(tmp_path / "golden", nn.Dropout(0.3).eval(), 5)
    assert dumpcmp.compare(golden, dumped(tmp_path / "target", nn.Dropout(0.3).eval(), 6)).passed


def test_what_is_open_is_not_told_as_not_compared(tmp_path: Path) -> None:
    golden = dumped(tmp_path / "golden", nn.Dropout(0.3), 5)
    outcome = dumpcmp.compare(golden, dumped(tmp_path / "target", nn.Dropout(0.3), 6))
    assert not any("ranks" in remark or "not compared" in remark for remark in outcome.remarks)
