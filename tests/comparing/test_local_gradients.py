"""Gradients of which each rank has a term: right only where somebody is seen to add them up."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.outcome import Conclusion
from dumpcmp.nouns.row import Verdict
from dumpcmp.taps.distributed import ranks


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ranks, "_stated", [])  # what set_rank says is for a whole process
    yield


def linear() -> nn.Linear:
    """A layer whose gradient of the bias is nearly the same for any sample."""
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.03, -0.02, 0.01]]))
        model.bias.fill_(1.0)
    return model


def trained(path: Path, x: Tensor) -> None:
    model = linear()
    with dumpcmp.capture(model, path, backward=True):
        model(x).square().mean().backward()


def samples() -> Tensor:
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(5))


def test_a_local_gradient_that_is_near_the_mean_is_open_and_not_wrong(tmp_path: Path) -> None:
    trained(tmp_path / "golden", samples())
    for rank, part in enumerate(samples().chunk(2)):
        dumpcmp.set_rank(rank, 2)
        trained(tmp_path / "target", part)
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    (row,) = (row for row in outcome.rows if row.key.slot == "grad.bias")
    assert row.verdict is Verdict.INCONCLUSIVE
    assert "their mean is golden's value; nothing that was recorded adds them up" in row.reason
    assert outcome.conclusion is Conclusion.UNKNOWN
    assert any("--layout '* grad.*=d[ranks:partial] ...'" in said for said in outcome.remarks)
    stated = "* grad.*=d[ranks:partial.avg] ..."
    declared = dumpcmp.compare(tmp_path / "golden", tmp_path / "target", layouts=stated)
    assert declared.conclusion is Conclusion.SAME
    assert not any(row.verdict is Verdict.FAIL for row in outcome.rows)
