"""Gradients that nobody set to zero are added to those of the step before."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp


class Spelled(nn.Linear):
    """A layer that spells its product otherwise."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight.t())


def trained(path: Path, last: type[nn.Linear], *, is_zeroed: bool) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), last(8, 5))
    with dumpcmp.capture(model, path=path, mode="eager", backward=True):
        for _ in range(3):
            if is_zeroed:
                model.zero_grad()
            model(torch.randn(16, 6)).square().mean().backward()
    return path


@pytest.mark.parametrize("is_zeroed", [False, True])
def test_runs_that_do_alike_are_the_same(tmp_path: Path, is_zeroed: bool) -> None:
    golden = trained(tmp_path / "golden", nn.Linear, is_zeroed=is_zeroed)
    outcome = dumpcmp.compare(golden, trained(tmp_path / "mine", Spelled, is_zeroed=is_zeroed))
    assert outcome.exit_code == 0, outcome.headline


@pytest.mark.parametrize("is_zeroed, who", [(True, "golden"), (False, "mine")])
def test_who_forgets_to_set_them_to_zero_is_told(tmp_path: Path, is_zeroed: bool, who: str) -> None:
    golden = trained(tmp_path / "golden", nn.Linear, is_zeroed=not is_zeroed)
    outcome = dumpcmp.compare(golden, trained(tmp_path / "mine", Spelled, is_zeroed=is_zeroed))
    root = outcome.first_divergence
    assert outcome.exit_code == 1 and root is not None
    assert (root.key.step, root.key.slot.is_parameter_gradient) == (1, True)
    assert f"{who} adds it to what the step before left" in root.reason
