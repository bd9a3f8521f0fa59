"""What of golden was held against nothing is told by reason, and where it lies."""

from pathlib import Path

import torch
from torch import Tensor, nn

import dumpcmp


class Norm(nn.Module):
    """A norm by hand, or by torch's own function."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.by_hand = by_hand

    def forward(self, x: Tensor) -> Tensor:
        if self.by_hand:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)


def told(tmp_path: Path, golden: bool, target: bool) -> str:
    """The remarks on two runs of two layers each."""
    for name, by_hand in (("golden", golden), ("target", target)):
        torch.manual_seed(0)
        model = nn.Sequential(Norm(by_hand), nn.Linear(8, 8), Norm(by_hand))
        with dumpcmp.capture(model, tmp_path / name, weights=True), torch.no_grad():
            model(torch.randn(4, 8))
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert outcome.exit_code == 0
    return "\n".join(outcome.remarks)


def test_what_only_golden_computes_is_listed_by_op_with_its_reason(tmp_path: Path) -> None:
    said = told(tmp_path, golden=True, target=False)
    assert "values (" in said and "%) were not compared:" in said
    assert "COVERED: only golden has it, and all that was computed from it agrees: " in said
    assert "2 in */rsqrt" in said or "4 in */rsqrt" in said


def test_what_only_the_target_computes_is_counted_apart(tmp_path: Path) -> None:
    said = told(tmp_path, golden=False, target=True)
    assert "not compared" not in said
    assert "are on one side only, mine: all that was computed from" in said


def test_nothing_is_said_where_all_was_compared(tmp_path: Path) -> None:
    assert "not compared" not in told(tmp_path, golden=True, target=True)
