"""Weights that change between steps: what one run left as it was is named, with its step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import dumpcmp
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Why


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(torch.tanh(self.norm(self.up(x))))
        return found


# All that has a gradient: that of a bias before a batch norm is rounding.
LEARNING = {"up.weight", "norm.weight", "norm.bias", "down.weight", "down.bias"}
Step = Callable[[Net, torch.optim.Optimizer], None]


def stepped(net: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()


def skipping(net: Net, optimizer: torch.optim.Optimizer) -> None:
    net.down.weight.grad = None
    optimizer.step()


def idle(net: Net, optimizer: torch.optim.Optimizer) -> None: ...


def faster(net: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = 0.02
    optimizer.step()


class InFloat64(TorchFunctionMode):
    """Another right way to compute a linear layer."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            x, weight, bias = args
            return (x.double() @ weight.double().T + bias.double()).to(x.dtype)
        return func(*args, **(kwargs or {}))


def trained(
    path: Path, step: Step = stepped, way: Any = torch.optim.SGD, noisy: bool = False, **ways: Any
) -> Path:
    """Three steps, with a slip after the second."""
    torch.manual_seed(0)
    net = Net()
    optimizer = way(net.parameters(), lr=0.01)
    with dumpcmp.capture(net, path, **ways):
        for number in range(3):
            optimizer.zero_grad()
            with InFloat64() if noisy else nullcontext():
                net(torch.randn(6, 8)).square().mean().backward()
            (step if number == 1 else stepped)(net, optimizer)
    return path


WAYS: dict[str, dict[str, Any]] = {
    "eager": {"backward": True}, "modules": {"level": "modules"}, "summary": {"keep": "summary"},
}  # fmt: skip


def leaves(outcome: Outcome) -> list[str]:
    return [f"{row.key.step} {row.reason}" for row in outcome.rows if row.judgement.why is Why.LEAF]


@pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS)
def test_a_parameter_that_the_optimizer_skipped_is_named_with_its_step(
    ways: dict[str, Any], tmp_path: Path
) -> None:
    golden = trained(tmp_path / "g", **ways)
    same = dumpcmp.compare(golden, trained(tmp_path / "s", **ways))
    assert not leaves(same) and same.exit_code == 0
    outcome = dumpcmp.compare(golden, trained(tmp_path / "t", skipping, **ways))
    (said,) = leaves(outcome)
    assert said.startswith("2 down.weight is not the same tensor")
    assert "golden's changed before token 2" in said or "golden's down.weight at token 1" in said
    assert outcome.first_divergence is not None and outcome.first_divergence.key.op == "down"


def test_an_optimizer_that_did_not_step_left_everything(tmp_path: Path) -> None:
    outcome = dumpcmp.compare(trained(tmp_path / "g"), trained(tmp_path / "t", idle))
    names = {said.split()[1] for said in leaves(outcome) if said.startswith("2")}
    assert names == LEARNING


def test_another_rate_is_found_where_nothing_before_differs(tmp_path: Path) -> None:
    golden = trained(tmp_path / "g", level="modules", backward=True)
    target = trained(tmp_path / "t", faster, level="modules", backward=True)
    found = leaves(dumpcmp.compare(golden, target))
    assert {said.split()[0] for said in found} == {"2"}
    assert {said.split()[1] for said in found} == LEARNING


@pytest.mark.parametrize("way", [torch.optim.SGD, torch.optim.AdamW])
def test_two_ways_to_take_the_same_step_are_the_same(way: Any, tmp_path: Path) -> None:
    golden = trained(tmp_path / "g", way=lambda *a, **k: way(*a, foreach=True, **k))
    target = trained(tmp_path / "t", way=lambda *a, **k: way(*a, foreach=False, **k))
    outcome = dumpcmp.compare(golden, target)
    assert not leaves(outcome) and outcome.exit_code == 0, outcome.headline


@pytest.mark.parametrize("step, found", [(stepped, set()), (skipping, {"down.weight"})])
def test_an_optimizer_that_makes_steps_of_noise_is_not_blamed(
    step: Step, found: set[str], tmp_path: Path
) -> None:
    adam = torch.optim.AdamW
    golden = trained(tmp_path / "g", way=adam, backward=True)
    target = trained(tmp_path / "t", step, way=adam, noisy=True, backward=True)
    outcome = dumpcmp.compare(golden, target)
    assert {said.split()[1] for said in leaves(outcome)} == found
    assert {f"{row.key.op}.{row.key.slot.name}" for row in outcome.roots} == found, outcome.headline


def averaged(path: Path, momentum: float) -> Path:
    torch.manual_seed(0)
    net = Net()
    with dumpcmp.capture(net, path, level="modules"), torch.no_grad():
        for number in range(3):
            net.norm.momentum = momentum if number == 1 else 0.1
            net(torch.randn(6, 8))
    return path


def test_moments_that_were_not_updated_are_named(tmp_path: Path) -> None:
    outcome = dumpcmp.compare(averaged(tmp_path / "g", 0.1), averaged(tmp_path / "t", 0.0))
    assert {said.split()[1] for said in leaves(outcome)} == {
        "norm.running_mean",
        "norm.running_var",
    }
    assert all("golden's changed before token 2" in said for said in leaves(outcome))
