"""Gradients of a value of which each taker has a copy: terms are not held against the whole."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.row import Verdict


class Gated(nn.Module):
    """Two takers of one value, or of a copy each; the scale makes a gradient wrong."""

    def __init__(self, *, copies: bool, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.gate, self.up = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.copies, self.scale = copies, scale

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        one, other = (h.clone(), h.clone()) if self.copies else (h, h)
        if self.scale != 1 and one.requires_grad:
            one.register_hook(lambda gradient: gradient * self.scale)
        out: Tensor = self.gate(one).tanh() * self.up(other)
        return out


def dumped(path: Path, mode: str, model: Gated) -> Path:
    x = torch.arange(16.0).reshape(2, 8).sin()
    with dumpcmp.capture(model, path, mode=mode, backward=True):
        model(x).sum().backward()
    return path


@pytest.mark.parametrize("mode", ["eager", "fx"])
def test_takers_with_copies_of_their_own_are_no_difference(tmp_path: Path, mode: str) -> None:
    golden = dumped(tmp_path / "golden", "eager", Gated(copies=False))
    outcome = dumpcmp.compare(golden, dumped(tmp_path / "target", mode, Gated(copies=True)))
    assert outcome.exit_code == 0, outcome.word
    assert all(row.target_key for row in outcome.rows if row.golden_key)
    terms = {row.key.op for row in outcome.rows if row.verdict is Verdict.COVERED}
    assert {"gate/linear", "up/linear"} <= terms
    alone = {row.key.op for row in outcome.rows if row.golden_key is None}
    assert alone == {"<root>/clone"}
    assert {row.verdict for row in outcome.rows} == {Verdict.PASS, Verdict.COVERED}


def test_a_wrong_term_is_a_difference(tmp_path: Path) -> None:
    golden = dumped(tmp_path / "golden", "eager", Gated(copies=False))
    target = dumped(tmp_path / "target", "eager", Gated(copies=True, scale=1.5))
    outcome = dumpcmp.compare(golden, target)
    assert outcome.exit_code == 1
    first = outcome.first_divergence
    assert first is not None and first.key.slot.is_gradient
