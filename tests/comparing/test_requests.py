"""What a dump leaves out by request is listed and does not fail; what it lost is another matter."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dumpcmp
from dumpcmp import Verdict
from dumpcmp.nouns.errors import CaptureWarning


class Block(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.attn = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.mlp = nn.Linear(8, 8)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mlp(self.attn(x)) * self.factor
        return out


class Net(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(Block(1.0), Block(factor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def dump(path: Path, factor: float = 1.0, **filters: Any) -> Path:
    torch.manual_seed(0)
    net = Net(factor)
    inputs = torch.randn(3, 4, 8)
    with dumpcmp.capture(net, path, **filters):
        for x in inputs:
            net(x).sum().backward()
    return path


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dump(tmp_path_factory.mktemp("runs") / "full", backward=True, weights=True)


FILTERS: dict[str, tuple[dict[str, Any], str]] = {
    "tokens": ({"tokens": "1,2", "backward": True, "weights": True}, "--token 1,2"),
    "layers": (
        {"layers": "layers.1.attn", "backward": True, "weights": True}, "--layer layers.1.attn",
    ),
    "level": ({"level": "modules", "backward": True, "weights": True}, "--level modules"),
    "io": ({"io": "output", "weights": True, "backward": True}, "--io output"),
    "no gradients": ({"weights": True}, "no --backward"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILTERS)
@pytest.mark.parametrize("filtered_side", ["golden", "my side"])
def test_a_filtered_dump_compares_on_what_both_have(
    case: str, filtered_side: str, full: Path, tmp_path: Path
) -> None:
    filters, option = FILTERS[case]
    filtered = dump(tmp_path / "filtered", **filters)
    sides = (filtered, full) if filtered_side == "golden" else (full, filtered)
    outcome = dumpcmp.compare(*sides)
    assert outcome.passed
    assert outcome.tally[Verdict.UNPAIRED] == 0
    assert outcome.tally[Verdict.SKIPPED] > 0
    said = f"not recorded by request: {filtered_side} was dumped with {option}"
    assert {row.reason for row in outcome.rows if row.verdict is Verdict.SKIPPED} == {said}
    assert any(said in remark for remark in outcome.remarks)


def test_what_both_have_still_fails(full: Path, tmp_path: Path) -> None:
    wrong = dump(tmp_path / "wrong", 1.1, tokens="1", layers="layers.1")
    outcome = dumpcmp.compare(full, wrong)
    assert outcome.exit_code == 1
    first = outcome.first_divergence
    assert first is not None
    assert first.key.op.startswith("layers.1")


def test_what_was_to_be_recorded_and_is_not_there_is_unpaired(tmp_path: Path) -> None:
    """The filter selects it, so its absence is a difference."""

    class Longer(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).tanh()

    torch.manual_seed(0)
    ours, theirs = Net(), Longer()
    for name, net in (("golden", ours), ("target", theirs)):
        with dumpcmp.capture(net, tmp_path / name, tokens="0"):
            net(torch.ones(4, 8))
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert outcome.tally[Verdict.UNPAIRED] > 0


def test_weights_that_an_empty_side_lacks_were_not_left_out_by_request(tmp_path: Path) -> None:
    """Captures record them unasked."""
    net = Net()
    with dumpcmp.capture(net, tmp_path / "golden"):
        net(torch.ones(4, 8))
    with pytest.warns(CaptureWarning), dumpcmp.capture(net, tmp_path / "target"):
        pass
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert outcome.exit_code == 2
    told = "values were skipped: only golden has such a weight, or tells of it"
    assert any(told in remark for remark in outcome.remarks)
    assert not any("by request" in remark for remark in outcome.remarks)


def test_a_layout_of_no_op_is_told_of(tmp_path: Path) -> None:
    net = Net()
    with dumpcmp.capture(net, tmp_path / "d"):
        net(torch.ones(4, 8))
    outcome = dumpcmp.compare(tmp_path / "d", tmp_path / "d", layouts="layer.0.mlp=b h[tp]")
    said = [remark for remark in outcome.remarks if "--layout" in remark]
    assert len(said) == 1 and said[0].startswith("--layout 'layer.0.mlp' matched nothing; closest:")


@pytest.mark.parametrize(
    "glob, inside",
    [
        ("layers.0.attn", {"layers.0.attn", "layers.0.attn.0", "layers.0.attn.1"}),
        ("layers.*.mlp", {"layers.0.mlp", "layers.1.mlp"}),
        ("layers.0", {"layers.0", "layers.0.attn", "layers.0.attn.0", "layers.0.attn.1",
                      "layers.0.mlp"}),
        ("<root>", {"<root>"}),
        ("layers.0.at", set()),
    ],
)  # fmt: skip
def test_a_layer_by_its_path_includes_what_is_inside(
    glob: str, inside: set[str], full: Path
) -> None:
    outcome = dumpcmp.compare(full, full, layers=glob)
    assert {row.key.op.module or "<root>" for row in outcome.rows} == inside
