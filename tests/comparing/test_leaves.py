"""What no op computed is the same in both runs or not: no rounding excuses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Why


class Layer(nn.Module):
    """A layer with a norm, a weight that it reads itself, and a buffer."""

    gate: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16, bias=False)
        self.square = nn.Linear(16, 16, bias=False)
        self.register_buffer("gate", torch.linspace(0.5, 1.5, 16))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.up(self.norm(x)))
        out: Tensor = x + self.square(self.down(inner)) * self.gate
        return out


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def dumped(
    path: Path,
    edit: Callable[[Stack], object] = lambda _: None,
    dtype: torch.dtype = torch.float32,
    given: float = 0.0,
    **ways: Any,
) -> Path:
    """An archive of a run of a Stack of `dtype` that `edit` has changed; `given` is added to x."""
    torch.manual_seed(3)
    model, x = Stack(), torch.randn(4, 16) + given
    with torch.no_grad():
        model.to(dtype)
        edit(model)
        with dumpcmp.capture(model, path, **ways):
            model(x.to(dtype))
    return path


def compared(tmp_path: Path, edit: Callable[[Stack], object], **ways: Any) -> Outcome:
    golden = {name: way for name, way in ways.items() if name != "given"}
    return dumpcmp.compare(dumped(tmp_path / "g", **golden), dumped(tmp_path / "t", edit, **ways))


def swap(weight: Tensor) -> None:
    weight[[3, 11]] = weight[[11, 3]]


def weights(model: Stack, layer: int = 1) -> Any:
    return model.layers[layer]


UP, SQUARE = "layers.1.up.weight", "layers.1.square.weight"
FAULTS: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "scaled": (lambda m: m.up.weight.mul_(1.25), UP, "golden's x 1.25"),
    "shifted": (lambda m: m.up.weight.add_(0.5), UP, "golden's + 0.5"),
    "transposed": (lambda m: m.square.weight.copy_(m.square.weight.T.clone()), SQUARE,
                   "it is golden's transposed"),
    "rows swapped": (lambda m: swap(m.up.weight), UP, "rows 3, 11 are swapped"),
    "rows turned": (lambda m: m.up.weight.copy_(m.up.weight.flip(0)), UP,
                    "it has golden's rows in another order"),
    "columns turned": (lambda m: m.up.weight.copy_(m.up.weight.flip(1)), UP,
                       "it has golden's columns in another order"),
    "zero": (lambda m: m.up.weight.zero_(), UP, "it is all zero"),
    "a row of zeros": (lambda m: m.up.weight[5].zero_(), UP, "row 5 is zero"),
    "one element": (lambda m: m.up.weight[5, 6].fill_(2), UP, "one element differs: [5, 6] is 2"),
    "negated": (lambda m: m.up.weight.neg_(), UP, "with the other sign"),
    "bias": (lambda m: m.up.bias.neg_(), "layers.1.up.bias", "with the other sign"),
    "norm": (lambda m: m.norm.weight.mul_(1.125), "layers.1.norm.weight",
             "all its elements are 1.125"),
}  # fmt: skip


@pytest.mark.each_value_once
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("edit, name, said", FAULTS.values(), ids=FAULTS)
def test_a_weight_that_is_another_is_named_with_what_it_looks_like(
    edit: Callable[[Any], object], name: str, said: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    if name == "layers.1.norm.weight":
        said = "golden's x 1.125"
    outcome = compared(tmp_path, lambda model: edit(model.layers[1]), dtype=dtype)
    (root,) = outcome.roots
    assert root.judgement.why is Why.LEAF
    assert root.reason.startswith(f"{name} is not the same tensor: rel_l2 ")
    assert said in root.reason


def test_a_factor_below_the_rounding_of_its_dtype_is_seen(tmp_path: Path) -> None:
    def edit(model: Stack) -> None:
        weight = weights(model).up.weight
        weight.copy_(weight.float() * 1.002)

    outcome = compared(tmp_path, edit, dtype=torch.bfloat16)
    assert outcome.roots[0].reason.startswith(f"{UP} is not the same tensor")


def test_another_layers_weight_is_called_by_its_name(tmp_path: Path) -> None:
    def edit(model: Stack) -> None:
        weights(model, 1).up.weight.copy_(weights(model, 0).up.weight)

    outcome = compared(tmp_path, edit)
    assert outcome.roots[0].reason.endswith("it is golden's layers.0.up.weight")


def test_another_input_is_where_it_begins(tmp_path: Path) -> None:
    outcome = compared(tmp_path, lambda _: None, given=0.25)
    (root,) = outcome.roots
    assert (root.key.op, root.key.slot, root.judgement.why) == ("<root>", "input.0", Why.LEAF)
    assert root.reason.endswith("golden's + 0.25")


def test_weights_in_another_dtype_are_compared_after_the_cast(tmp_path: Path) -> None:
    golden = dumped(tmp_path / "g")
    cast = dumped(tmp_path / "t", dtype=torch.bfloat16)
    assert not any(row.judgement.why is Why.LEAF for row in dumpcmp.compare(golden, cast).rows)

    def edit(model: Stack) -> None:
        weight = weights(model).up.weight
        weight.copy_((weight.float() * 1.01).bfloat16())

    other = dumped(tmp_path / "o", edit, dtype=torch.bfloat16)
    (root,) = [r for r in dumpcmp.compare(golden, other).rows if r.judgement.why is Why.LEAF]
    assert "it is not golden's float32 cast to bfloat16" in root.reason


def test_a_table_of_sines_may_be_rounded_otherwise_but_not_differ(tmp_path: Path) -> None:
    def rounded(model: Stack) -> None:
        gate = weights(model).gate
        gate[::3] = torch.nextafter(gate[::3], torch.tensor(9.0))

    def wrong(model: Stack) -> None:
        weights(model).gate[2] *= 1.001

    rows = compared(tmp_path, rounded).rows
    assert not any(row.judgement.why is Why.LEAF for row in rows)
    (root,) = compared(tmp_path / "wrong", wrong).roots
    assert root.judgement.why is Why.LEAF
    assert "one element differs: [2]" in root.reason


def test_what_a_filter_hides_is_no_leaf(tmp_path: Path) -> None:
    def edit(model: Stack) -> None:
        weights(model, 0).up.weight.mul_(1.5)

    outcome = compared(tmp_path, edit, layers="layers.1*")
    assert not outcome.passed
    assert not any(row.judgement.why is Why.LEAF for row in outcome.rows)


class Shared(nn.Module):
    """Calls one batch norm twice; what it has written to its moments is off by `factor` between."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.norm, self.factor = nn.BatchNorm1d(8), factor

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        for moment in (self.norm.running_mean, self.norm.running_var):
            assert moment is not None
            numbers = moment.numpy()
            numbers *= np.float32(self.factor)
        z: Tensor = self.norm(y + 1)
        return z


@pytest.mark.parametrize("factor", [1 + 1.2e-7, 1.01], ids=["rounding", "a fault"])
def test_moments_of_a_call_before_are_no_leaves(factor: float, tmp_path: Path) -> None:
    for name, each in ("golden", 1.0), ("mine", factor):
        torch.manual_seed(0)
        model, x = Shared(each), torch.randn(16, 8)
        with dumpcmp.capture(model, tmp_path / name, backward=True):
            for _ in range(2):
                model(x).square().sum().backward()
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine")
    if factor < 1.001:
        assert outcome.passed, outcome
    else:
        root = outcome.first_divergence
        assert root is not None and root.key.op == "norm@1/batch_norm" and root.key.step == 0
        assert root.judgement.why is not Why.LEAF, "what was computed differs, not what was given"
        assert "it is 0.01 off the op in float64" in root.reason


class Cancelling(nn.Module):
    """A batch norm of what has no mean but by rounding, behind another one."""

    def __init__(self, momentum: float = 0.1) -> None:
        super().__init__()
        self.first, self.mix = nn.BatchNorm1d(8), nn.Linear(8, 8, bias=False)
        self.second = nn.BatchNorm1d(8, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.mix(self.first(x)))
        return y


def moments(room: Path, wrong: Cancelling, mode: str) -> Outcome:
    torch.manual_seed(0)
    golden = Cancelling()
    wrong.load_state_dict(golden.state_dict())
    x = torch.randn(64, 8)
    for name, model, given in (
        ("golden", golden, x), ("mine", wrong, x.t().contiguous().t()),
    ):  # fmt: skip
        with dumpcmp.capture(model, room / name, mode=mode, backward=True):
            for _ in range(3):
                model(given * 3 + 1).logsumexp(-1).sum().backward()
                model.zero_grad()
    return dumpcmp.compare(room / "golden", room / "mine")


@pytest.mark.parametrize("mode", ["eager", "aten"])
def test_a_mean_of_which_rounding_is_left_is_judged_by_the_deviation(
    mode: str, tmp_path: Path
) -> None:
    outcome = moments(tmp_path, Cancelling(), mode)
    kept = {row.key.step for row in outcome.rows if row.key.slot == "buffer.running_mean"}
    assert outcome.passed and kept == {0, 1, 2}, outcome


def test_another_momentum_is_told(tmp_path: Path) -> None:
    root = moments(tmp_path, Cancelling(momentum=0.3), "eager").first_divergence
    assert root is not None and root.key.op.module == "second", root


class Idle(nn.Module):
    """Has a parameter without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.idle = nn.Linear(8, 8), nn.Parameter(torch.zeros(0, 4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) + self.idle.sum()
        return y


def test_a_parameter_without_elements_is_no_other_in_another_dtype(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        model, x = Idle().to(dtype), torch.ones(4, 8, dtype=dtype)
        with torch.no_grad(), dumpcmp.capture(model, tmp_path / str(dtype)):
            model(x)
    outcome = dumpcmp.compare(tmp_path / "torch.float32", tmp_path / "torch.bfloat16")
    assert outcome.exit_code == 0, outcome.headline
