"""``dumpcmp verify`` from the shell: the demo, a user's model, and what goes wrong."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dumpcmp.cli import main

MODELS = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (torch.randn(3, 4),)

class Branching(nn.Module):
    def forward(self, x):
        return x * (7 if torch.compiler.is_compiling() else 1)

def branching():
    return Branching(), {"x": torch.ones(3)}

def without_inputs():
    return nn.Linear(2, 2)
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module of models in the working directory."""
    (tmp_path / "users_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "users_models"
    sys.modules.pop("users_models", None)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["verify", *arguments])


@pytest.mark.parametrize("options", [[], ["--backward", "--reference", "float64"]])
def test_the_demo_needs_no_arguments(options: list[str]) -> None:
    result = run("--backend", "aot_eager", *options)
    assert result.exit_code == 0, result.output
    assert "compiled TinyDecoder against TinyDecoder: all" in result.output
    assert ("grad.norm.weight" in result.output) == bool(options)


def test_without_options_it_is_the_demo_on_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose kernels take long to compile: `eager` stands in for it."""
    asked: list[str] = []

    def stands_in(name: str) -> str:
        asked.append(name)
        return "eager"

    monkeypatch.setattr("dumpcmp.taps.modes.boundary.backend_named", stands_in)
    result = run()
    assert result.exit_code == 0, result.output
    assert asked == ["inductor"]
    assert "compiled TinyDecoder against TinyDecoder: all" in result.output


CHECKERS = ["auto", "allclose", "full", "fp64", "cosine", "exact", "rounding"]


@pytest.mark.parametrize("checker", CHECKERS)
def test_each_checker_by_name(checker: str, models: str) -> None:
    result = run("--model", f"{models}:build", "--backend", "eager", "--checker", checker)
    assert result.exit_code == 0, result.output


CASES = {
    "different": (["branching", "--checker", "exact"], 1, "output.0  FAIL"),
    "different, by allclose": (["branching", "--rtol", "0.1", "--checker", "allclose"], 1, "FAIL"),
    "explained": (["branching", "--checker", "exact", "--explain"], 1, "the first op that differs"),
    "unknown checker": (["build", "--checker", "magic"], 2, "'magic' is not known"),
    "idle tolerance": (["build", "--checker", "exact", "--rtol", "1"], 2, "does not heed"),
    "unknown backend": (["build", "--backend", "magic"], 2, "--backend magic"),
    "no inputs": (["without_inputs"], 2, "not a model and its inputs"),
    "no factory": (["missing"], 2, "has no attribute 'missing'"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_differs_is_exit_1_and_trouble_is_exit_2(case: str, models: str) -> None:
    (factory, *options), code, said = CASES[case]
    if "--backend" not in options:
        options += ["--backend", "aot_eager"]
    result = run("--model", f"{models}:{factory}", *options)
    assert result.exit_code == code, result.output
    assert said in result.output
