"""An op of the target alone is named where it computes, not where a weight for it is laid out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.row import Row

Extra = Callable[["Mixing", Tensor], Tensor]


class Mixing(nn.Module):
    """Attention without projections, with room for one op more on what it gives."""

    def __init__(self, extra: Extra | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin, self.scale = nn.Linear(6, 6), nn.Parameter(torch.rand(6) + 1.5)
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        heads = self.lin(x).view(-1, 2, 3).transpose(0, 1)
        mixed = torch.softmax(heads @ heads.transpose(-1, -2), -1) @ heads
        if self.extra:
            mixed = self.extra(self, mixed)
        out: Tensor = self.lin(mixed.transpose(0, 1).reshape(-1, 6))
        return out


def over_a_weight(model: Mixing, x: Tensor) -> Tensor:
    return x / model.scale.view(2, 1, 3)


def times_a_part(model: Mixing, x: Tensor) -> Tensor:
    return x * model.scale[:, None].expand(6, 3)[1]


def masked(_: Mixing, x: Tensor) -> Tensor:
    return x * torch.ones(4, 3).tril()


def weighed(model: Mixing, x: Tensor) -> Tensor:
    return x / torch.exp(model.scale).view(2, 1, 3)


CASES: dict[str, tuple[Extra, str]] = {
    "over a weight": (over_a_weight, "div"),
    "times a part of a weight": (times_a_part, "mul"),
    "times a mask": (masked, "mul"),
    "over what is computed of a weight": (weighed, "exp"),
}


def first(tmp_path: Path, extra: Extra, mode: str, backward: bool) -> Row | None:
    """Where a comparison with a run that has an op more says that it goes wrong."""
    for name, model in (("golden", Mixing()), ("target", Mixing(extra))):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
        with dumpcmp.capture(model, tmp_path / name, mode=mode, backward=backward):
            out = model(x)
            if backward:
                out.square().sum().backward()
    return dumpcmp.compare(tmp_path / "golden", tmp_path / "target").first_divergence


@pytest.mark.each_value_once
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("mode", ["eager", "aten"])
@pytest.mark.parametrize("name", CASES)
def test_an_extra_op_is_named_where_it_computes(
    name: str, mode: str, backward: bool, tmp_path: Path
) -> None:
    extra, function = CASES[name]
    found = first(tmp_path, extra, mode, backward)
    assert found is not None and found.golden_key is None
    named = found.key.op.function.removeprefix("aten.")
    spread = (
        "expand" if (name, mode, backward) == ("times a part of a weight", "aten", True) else ""
    )
    assert named in (function, spread)  # what it takes may be spread out for it first


@pytest.mark.parametrize("mode", ["eager", "aten"])
def test_a_weight_that_is_laid_out_wrongly_is_named_there(mode: str, tmp_path: Path) -> None:
    class Turned(nn.Module):
        def __init__(self, is_turned: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight, self.is_turned = nn.Parameter(torch.randn(6, 6)), is_turned

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x @ (self.weight.t() if self.is_turned else self.weight))

    for name in ("golden", "target"):
        model = Turned(name == "target")
        with torch.no_grad(), dumpcmp.capture(model, tmp_path / name, mode=mode):
            model(torch.ones(2, 6).cumsum(1))
    found = dumpcmp.compare(tmp_path / "golden", tmp_path / "target").first_divergence
    assert found is not None and found.key.op.function.removeprefix("aten.") == "t"
