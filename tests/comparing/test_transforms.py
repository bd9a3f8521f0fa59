"""What runs inside of torch.func is compared as anything else; whole batches are not replayed."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.row import Verdict


class Rows(nn.Module):
    """The same of each row: by vmap or `by_hand`, with a `fault` that is to be found."""

    def __init__(self, by_hand: bool = False, fault: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix = nn.Linear(16, 16)
        self.by_hand, self.fault, self.scale = by_hand, fault, scale

    def one(self, row: Tensor) -> Tensor:
        return row.softmax(0) * ((row * row).sum() + self.fault)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.mix(x) * self.scale
        if self.by_hand:
            y = y.softmax(-1) * ((y * y).sum(-1, keepdim=True) + self.fault)
        else:
            y = torch.func.vmap(self.one)(y)
        slope: Tensor = torch.func.grad(lambda v: v.sin().sum())(y.detach())
        return y + slope


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumped(tmp_path_factory.mktemp("rows") / "golden", Rows())


def dumped(path: Path, model: nn.Module) -> Path:
    with dumpcmp.capture(model, path):
        model(torch.randn(5, 16, generator=torch.Generator().manual_seed(2)))
    return path


SAME = {"by vmap": Rows(), "rounded": Rows(scale=1 + 1e-7), "by hand": Rows(by_hand=True)}


@pytest.mark.parametrize("name", SAME)
def test_what_is_right_is_the_same(name: str, golden: Path, tmp_path: Path) -> None:
    outcome = dumpcmp.compare(golden, dumped(tmp_path / "d", SAME[name]), replay="all")
    assert outcome.exit_code == 0, outcome.headline
    told = [row.replay.unknown for row in outcome.rows if row.replay and row.replay.unknown]
    assert name != "rounded" or any("vmap" in why for why in told)  # the same bytes need no replay


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_fault_inside_of_vmap_is_found(by_hand: bool, golden: Path, tmp_path: Path) -> None:
    outcome = dumpcmp.compare(golden, dumped(tmp_path / "d", Rows(by_hand, fault=0.01)))
    first = outcome.first_divergence
    assert outcome.exit_code == 1 and first is not None and "<root>/" in str(first.key)
    failed = {row.key.op for row in outcome.rows if row.verdict is Verdict.FAIL}
    assert not failed & {"mix", "<root>/softmax"}
