"""show --pairs: how calls found each other, which did not, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import Tensor, nn

from dumpcmp.cli import main
from dumpcmp.dumping.capturing import capture


class Net(nn.Module):
    """Two ways to the same: written out or not, with a call that goes nowhere or without."""

    def __init__(self, written_out: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.written_out = nn.Linear(8, 8), written_out

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        if self.written_out:
            return x * x.sigmoid() + 1.0
        x.exp()
        out: Tensor = nn.functional.silu(x) + 1.0
        return out


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("pairs")
    for name, written_out in (("d1", False), ("d2", True)):
        model = Net(written_out)
        with torch.no_grad(), capture(model, room / name):
            model(torch.linspace(-1, 1, 24).reshape(3, 8))
    paths = ["--golden-path", str(room / "d1"), "--my-path", str(room / "d2")]
    out = ["--output", str(room / "out"), "--format", "csv,json"]
    assert CliRunner().invoke(main, ["compare", *paths, *out]).exit_code == 0
    return room


def shown(*words: object) -> Result:
    return CliRunner().invoke(main, ["show", *map(str, words)])


def test_the_calls_of_two_archives_are_listed_with_reasons(room: Path) -> None:
    result = shown("--pairs", room / "d1", room / "d2")
    assert result.exit_code == 0, result.output
    lines = [line.strip() for line in result.output.splitlines()]
    assert "token 0 inner/linear#0  =  token 0 inner/linear#0  by key" in lines
    assert "token 0 <root>/exp#0  my side calls no exp" in lines
    assert "token 0 <root>/sigmoid#0  golden calls no sigmoid" in lines
    assert "only golden: 1" in result.output and "only my side: 1" in result.output
    assert any(line.endswith("values paired by key") for line in lines)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_report_is_listed_with_its_verdicts(room: Path, kind: str) -> None:
    result = shown("--pairs", room / "out" / f"compare.{kind}")
    assert result.exit_code == 0, result.output
    assert "<root>/exp#0/output.0  DEAD" in result.output
    assert "inner/linear#0/output.0  =  token 0 inner/linear#0/output.0  by key" in result.output


def test_a_glob_selects(room: Path) -> None:
    result = shown("--pairs", room / "d1", room / "d2", "inner*")
    assert "inner/linear" in result.output and "exp" not in result.output


def test_what_cannot_be_shown_is_trouble(room: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for words in (
        ("--pairs", room / "d1"),
        ("--pairs", other),
        ("--pairs", broken),
        ("--pairs", tmp_path / "missing.csv"),
        ("--pairs", room / "d1", room / "d2", "nothing*"),
        (room / "d1", room / "d2", "x"),
        (room / "d1", "--token-offset", "1"),
    ):
        assert shown(*words).exit_code == 2, words
