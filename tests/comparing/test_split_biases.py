"""A bias that is added after the product, in whatever shape: the dispatcher sees other calls."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp

Line = Callable[[Tensor, Tensor, Tensor], Tensor]


def after_the_view(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows = torch.mm(x.reshape(-1, x.shape[-1]), weight.t())
    return rows.reshape(*x.shape[:-1], -1) + bias


def before_the_view(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    rows = torch.mm(x.reshape(-1, x.shape[-1]), weight.t())
    return (rows + bias).reshape(*x.shape[:-1], -1)


def without_views(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.matmul(x, weight.t()) + bias


class Split(nn.Module):
    def __init__(self, linear: nn.Linear, line: Line, slip: float) -> None:
        super().__init__()
        self.weight, self.bias, self.line, self.slip = linear.weight, linear.bias, line, slip

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias if self.slip == 1 else self.bias * self.slip
        return self.line(x, self.weight, bias)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up: nn.Module = nn.Linear(16, 24)
        self.down: nn.Module = nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        given: Tensor = x + self.down(torch.relu(self.up(x)))
        return given


def split(model: Net, line: Line, slip: float) -> Net:
    model = copy.deepcopy(model)
    assert isinstance(model.up, nn.Linear) and isinstance(model.down, nn.Linear)
    model.up, model.down = Split(model.up, line, 1.0), Split(model.down, line, slip)
    return model


def dumped(model: nn.Module, path: Path, mode: str, backward: bool) -> Path:
    x = torch.linspace(-1, 1, 2 * 5 * 16).sin().reshape(2, 5, 16)
    with dumpcmp.capture(model, path, mode=mode, backward=backward):
        out = model(x)
        if backward:
            out.square().mean().backward()
    return path


@pytest.mark.each_value_once
@pytest.mark.parametrize("line", [after_the_view, before_the_view, without_views])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("mode", ["eager", "aten"])
def test_it_is_the_same_and_another_bias_is_not(
    line: Line, mode: str, backward: bool, tmp_path: Path
) -> None:
    model = Net()
    golden = dumped(copy.deepcopy(model), tmp_path / "g", mode, backward)
    for slip in (1.0, 1.1):
        path = dumped(split(model, line, slip), tmp_path / str(slip), mode, backward)
        outcome = dumpcmp.compare(golden, path)
        assert outcome.passed is (slip == 1), outcome.headline
        first = outcome.first_divergence
        assert slip == 1 or (first is not None and first.key.op.startswith("down")), first


@pytest.mark.parametrize("mode", ["eager", "aten"])
def test_a_result_of_another_shape_is_none(mode: str, tmp_path: Path) -> None:
    """A dim of one element more is broadcast by who takes it."""

    class Last(nn.Module):
        def __init__(self, is_flat: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.line, self.is_flat = nn.Linear(8, 1), is_flat

        def forward(self, x: Tensor) -> Tensor:
            given: Tensor = self.line(x)
            return given.squeeze(-1) if self.is_flat else given

    x = torch.ones(4, 8).cumsum(1)
    for name, is_flat in (("g", True), ("t", False)):
        with dumpcmp.capture(model := Last(is_flat), tmp_path / name, mode=mode):
            model(x)
    assert not dumpcmp.compare(tmp_path / "g", tmp_path / "t").passed


@pytest.mark.parametrize("mode", ["eager", "aten"])
def test_a_result_that_is_put_aside_keeps_its_shape(mode: str, tmp_path: Path) -> None:
    """Whoever reads it is not recorded."""

    class Aside(nn.Module):
        def __init__(self, keepdim: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.line, self.keepdim = nn.Linear(8, 8), keepdim

        def forward(self, x: Tensor) -> Tensor:
            given: Tensor = self.line(x)
            self.aside = given.sum(-1, keepdim=self.keepdim)
            return given

    x = torch.ones(4, 8).cumsum(1)
    for name, keepdim in (("g", False), ("t", True)):
        with dumpcmp.capture(model := Aside(keepdim), tmp_path / name, mode=mode):
            model(x)
    assert not dumpcmp.compare(tmp_path / "g", tmp_path / "t").passed
