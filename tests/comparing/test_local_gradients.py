"""Gradients that ranks have before they are reduced by hand: near the whole, and no fault."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.row import Verdict
from dumpcmp.taps.distributed import ranks


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ranks, "_stated", [])  # what set_rank says is for a whole process
    yield


def trained(path: Path, x: Tensor) -> None:
    """A step whose gradient of the bias is nearly the same for any sample."""
    model = nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.03, -0.02, 0.01]]))
        model.bias.fill_(1.0)
    with dumpcmp.capture(model, path, backward=True):
        model(x).square().mean().backward()


def test_a_local_gradient_that_is_near_the_mean_is_not_wrong(tmp_path: Path) -> None:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(5))
    trained(tmp_path / "golden", x)
    for rank, part in enumerate(x.chunk(2)):
        dumpcmp.set_rank(rank, 2)
        trained(tmp_path / "target", part)
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    (row,) = (row for row in outcome.rows if row.key.slot == "grad.bias")
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.reason.endswith("the sum over the ranks is golden's value")
    assert not any(row.verdict is Verdict.FAIL for row in outcome.rows)
