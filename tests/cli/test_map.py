"""The map command: it writes a mapping that compare takes as it is, and replaces no file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import Tensor, nn

from dumpcmp.cli import main
from dumpcmp.dumping.capturing import capture


class Apart(nn.Module):
    """A gated layer with three projections."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.tanh(self.gate(x)) * self.up(x))
        return out


class Merged(nn.Module):
    """The same with two, of which one has gate and up taking turns."""

    def __init__(self, apart: Apart) -> None:
        super().__init__()
        self.both, self.back = nn.Linear(8, 24), nn.Linear(12, 8)
        self.back.load_state_dict(apart.down.state_dict())
        weights = [layer.weight.data for layer in (apart.gate, apart.up)]
        biases = [layer.bias.data for layer in (apart.gate, apart.up)]
        self.both.weight.data = torch.stack(weights, 1).flatten(0, 1)
        self.both.bias.data = torch.stack(biases, 1).flatten(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        both = self.both(x)
        out: Tensor = self.back(torch.tanh(both[..., ::2]) * both[..., 1::2])
        return out


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("map")
    apart = Apart()
    for name, model in {"d1": apart, "d2": Merged(apart), "d3": nn.Linear(8, 3)}.items():
        with torch.no_grad(), capture(model, room / name):
            model(torch.linspace(-1, 1, 48).reshape(2, 3, 8))
    return room


def run(room: Path, *words: str) -> Result:
    paths = [str(room / word) if word[0] == "d" and word[1:].isdigit() else word for word in words]
    return CliRunner().invoke(main, paths)


def test_the_proposal_works_as_it_is(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(room, "map", "d1", "d2")
    assert result.exit_code == 0 and "dumpcmp compare --golden-path" in result.output
    written = Path("mapping.yaml").read_text()
    assert '"{gate,up}": {to: both, axis: -1, groups: 12}' in written
    assert "to the bit" in written and "[2, 3, 8] outputs equal" in written
    for golden, mine in (("d1", "d2"), ("d2", "d1")):
        out = str(tmp_path / f"{golden}.yaml")
        assert run(room, "map", golden, mine, "-o", out).exit_code == 0
        paths = ("--golden-path", str(room / golden), "--my-path", str(room / mine))
        compared = run(room, "compare", *paths, "--mapping", out)
        assert compared.exit_code == 0, compared.output


def test_a_file_that_is_there_is_kept(room: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.yaml"
    kept.write_text("mine")
    result = run(room, "map", "d1", "d2", "-o", str(kept))
    assert result.exit_code == 2 and kept.read_text() == "mine"


def test_the_same_names_need_no_mapping(room: Path) -> None:
    result = run(room, "map", "d1", "d1", "-o", "-")
    assert result.exit_code == 0 and "no mapping is needed" in result.output


def test_runs_that_have_nothing_in_common_are_trouble(room: Path) -> None:
    assert run(room, "map", "d1", "d3", "-o", "-").exit_code == 2
    assert run(room, "map", "d1", "d9", "-o", "-").exit_code == 2


WRONG = [("axis: 0, groups: 12", "do not make up"), ("axis: -1, groups: 5", "do not make up")]


@pytest.mark.parametrize("terms, told", WRONG)
def test_what_a_line_states_must_fit(room: Path, tmp_path: Path, terms: str, told: str) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(f'"{{gate,up}}": {{to: both, {terms}}}\n')
    paths = ("--golden-path", str(room / "d1"), "--my-path", str(room / "d2"))
    result = run(room, "compare", *paths, "--mapping", str(path))
    assert result.exit_code == 2, result.output


def test_the_wrong_order_is_a_difference(room: Path, tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text('"{up,gate}": {to: both, groups: 12}\ndown: back\n')
    paths = ("--golden-path", str(room / "d1"), "--my-path", str(room / "d2"))
    assert run(room, "compare", *paths, "--mapping", str(path)).exit_code == 1
