"""Parameters and buffers are recorded once a run, and again where they change, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.record import Kept
from dumpcmp.nouns.row import Why


class Net(nn.Module):
    """Modules that are called, one whose weight is only read, a buffer, and a tied weight."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(24, 48)
        self.norm = nn.BatchNorm1d(48)
        self.held = nn.Linear(48, 24, bias=False)  # is never called
        self.tied = nn.Linear(24, 48)
        self.tied.weight = self.up.weight
        self.register_buffer("mask", torch.linspace(0, 1, 24 * 24).view(24, 24))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(self.up(x)) + self.tied(x)
        out: Tensor = nn.functional.linear(inner, self.held.weight) @ self.mask
        return out


NAMES = {
    "up param.weight", "up param.bias", "norm param.weight", "norm param.bias",
    "norm buffer.running_mean", "norm buffer.running_var", "norm buffer.num_batches_tracked",
    "held param.weight", "tied param.weight", "tied param.bias", "<root> buffer.mask",
}  # fmt: skip
MODES: dict[str, dict[str, Any]] = {
    "eager": {},
    "modules": {"level": "modules"},
    "outputs": {"io": "output"},
    "summary": {"keep": "summary"},
    "whole": {"weights": True, "keep": "summary"},
    "fx": {"mode": "fx"},
    "aten": {"mode": "aten"},
    "compiled": {"mode": dumpcmp.Compiled(twin=False)},  # twins hold no weights of their own
    "boundary": {"mode": dumpcmp.Boundary("eager")},
}


def dumped(path: Path, factor: float = 1.0, **ways: Any) -> Tensor:
    torch.manual_seed(0)
    net, out = Net(), torch.zeros(0)
    with torch.no_grad():
        net.held.weight.mul_(factor)
        with dumpcmp.capture(net, path, overwrite=True, **ways):
            for step in range(2):
                out = net(torch.full((5, 24), 0.5 + step))
    return out


CHANGING = {name for name in NAMES if name.startswith("norm buffer")}  # in training


@pytest.mark.parametrize("ways", MODES.values(), ids=MODES)
def test_weights_are_recorded_once_and_where_they_change(
    ways: dict[str, Any], tmp_path: Path
) -> None:
    dumped(tmp_path / "d1", **ways)
    archive = Archive(tmp_path / "d1")
    told = [(key.step, key.call, f"{key.op} {key.slot}") for key in archive if key.slot.is_weight]
    assert sorted(told) == sorted([(0, 0, n) for n in NAMES] + [(1, 0, n) for n in CHANGING])
    keys = [key for key in archive if key.slot.is_weight and not key.step]
    torch.manual_seed(0)
    state = Net().state_dict()  # as it was before the first step changed it
    for key in keys:
        (record,) = archive.shards(key)
        name = f"{key.op}.{key.slot.name}".removeprefix("<root>.")
        assert (record.dtype, record.shape) == (str(state[name].dtype)[6:], state[name].shape)
        if record.kept is Kept.FULL:
            assert torch.equal(archive.tensor(key), state[name])


def _grown(net: Net) -> None:
    net.more = nn.Linear(3, 3)


def _replaced(net: Net) -> None:
    net.up.bias = nn.Parameter(torch.ones(48))


def _written(net: Net) -> None:
    net.held.weight.mul_(2)


def _moved(net: Net) -> None:
    net.mask.data = net.mask.data.clone()


def _odd(net: Net) -> None:
    net.mask = torch.nn.Buffer(torch.ones(24, 24).as_subclass(Odd))


class Odd(Tensor):
    pass


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda net: None, set()),
        (_grown, {"more param.weight", "more param.bias"}),
        (_replaced, {"up param.bias"}),
        (_written, {"held param.weight"}),
        (_moved, {"<root> buffer.mask"}),
        (_odd, {"<root> buffer.mask"}),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_what_changes_between_steps_is_recorded_again_and_nothing_else(
    change: Callable[[Net], None], names: set[str], tmp_path: Path
) -> None:
    net = Net().eval()
    with torch.no_grad(), dumpcmp.capture(net, tmp_path / "d", level="modules"):
        for step in range(5):
            if step == 2:
                change(net)
            net(torch.ones(5, 24))
    told = [key for key in Archive(tmp_path / "d") if key.slot.is_weight and key.step]
    assert {(key.step, f"{key.op} {key.slot}") for key in told} == {(2, name) for name in names}


def test_functions_link_to_the_weights_that_they_take(tmp_path: Path) -> None:
    dumped(tmp_path / "d1")
    archive = Archive(tmp_path / "d1")
    (key,) = (k for k in archive if (k.op, k.slot, k.step) == ("up/linear", "input.1", 0))
    (taken,) = archive.shards(key)
    assert taken.same_as is not None
    assert (taken.same_as.op, taken.same_as.slot) == ("up", "param.weight")


def test_functions_link_to_weights_that_were_written_since_however_large(tmp_path: Path) -> None:
    model = nn.Linear(200, 200)
    with torch.no_grad(), dumpcmp.capture(model, tmp_path / "d"):
        for _ in range(2):
            model(torch.ones(1, 200))
            model.weight.mul_(0.5)
    archive = Archive(tmp_path / "d")
    (key,) = (k for k in archive if (k.op, k.slot, k.step) == ("<root>/linear", "input.1", 1))
    (taken,) = archive.shards(key)
    assert taken.same_as is not None and taken.same_as.slot == "param.weight"
    assert taken.same_as.step == 1 and archive[taken.same_as].kept is Kept.FULL


def test_a_run_is_the_same_with_its_weights_recorded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        plain = [net(torch.full((5, 24), 0.5 + step)) for step in range(2)]
    assert torch.equal(dumped(tmp_path / "d1", level="modules"), plain[1])


@pytest.mark.parametrize("ways", MODES.values(), ids=MODES)
def test_another_weight_is_named_in_every_mode(ways: dict[str, Any], tmp_path: Path) -> None:
    dumped(tmp_path / "g", **{name: way for name, way in ways.items() if name != "mode"})
    dumped(tmp_path / "s", **ways)
    dumped(tmp_path / "t", 1.125, **ways)
    same = dumpcmp.compare(tmp_path / "g", tmp_path / "s")
    assert not [row for row in same.rows if row.judgement.why in (Why.LEAF, Why.CALL)]
    found = [
        row
        for row in dumpcmp.compare(tmp_path / "g", tmp_path / "t").rows
        if row.judgement.why is Why.LEAF
    ]
    (row,) = found  # at the module, or at the function that read it first
    assert row.root
    assert row.reason.startswith("held.weight is not the same tensor")
    assert row.reason.endswith("golden's x 1.125")
