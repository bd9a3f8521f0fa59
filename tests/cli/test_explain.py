"""The explain command: one value in words, by its name or as the first divergence."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import Tensor, nn

import dumpcmp
from dumpcmp.cli import main

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
GOLDEN, TARGET = str(SAMPLES / "golden"), str(SAMPLES / "target")


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["explain", *arguments])


def test_the_first_divergence_is_told_in_words() -> None:
    told = explain(TARGET, GOLDEN)
    assert told.exit_code == 1
    for words in (
        "layers.1.attn.o_proj/linear#0 output.0",
        "took input.0 float32 [1, 8, 32]: PASS, the same",
        "The difference begins here",
        "Looks like: mine is zero at index 7 of dim 2 only (explains 100.0 %)",
        "70 failing rows only inherit from it",
    ):
        assert words in told.output


def test_an_heir_names_its_root() -> None:
    told = explain(TARGET, GOLDEN, "layers.1/add#0 output.0", "--token", "0")
    assert "The op is right for what it was given" in told.output
    assert "It inherits from TinyDecoder[0] layers.1.attn.o_proj/linear#0 output.0" in told.output


class Net(nn.Module):
    """Layers that each give out a multiple of what they should."""

    def __init__(self, factors: Sequence[float]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in factors)
        self.factors = factors

    def forward(self, x: Tensor) -> Tensor:
        for layer, factor in zip(self.layers, self.factors, strict=True):
            x = layer(x)
            x = torch.mul(x, factor)
        return x


def run(path: Path, *steps: Sequence[float]) -> str:
    """A run whose layers multiply, step by step, by these factors."""
    net = Net(steps[0])
    with torch.no_grad(), dumpcmp.capture(net, path):
        for number, factors in enumerate(steps):
            net.factors = factors
            net(torch.linspace(-1, 1, 8)[None] * (number + 1))
    return str(path)


Steps = list[tuple[float, ...]]
LATER_AND_WORSE: dict[str, tuple[Steps, Steps]] = {
    "in the same token": ([(1.01, 1, 3)], [(1, 1, 1)]),
    "in a later token": ([(1.01, 1, 1), (1, 1, 5)], [(1, 1, 1)] * 2),
    "in many later ops": ([(1.01, *[3] * 30)], [(1,) * 31]),
}


@pytest.mark.parametrize("case", LATER_AND_WORSE)
def test_the_closer_look_is_taken_at_the_first_root_and_not_at_the_worst(
    case: str, tmp_path: Path
) -> None:
    mine, golden = LATER_AND_WORSE[case]
    paths = run(tmp_path / "mine", *mine), run(tmp_path / "golden", *golden)
    told = explain(*paths)
    assert "Net[0] <root>/mul#0 output.0" in told.output
    assert "Looks like: mine is golden's times 1.01" in told.output
    for closely in (1, 24):
        outcome = dumpcmp.compare(*reversed(paths), closely=closely)
        worst = max(row.metrics.rel_l2 for row in outcome.failures if row.metrics)
        metrics = outcome.roots[0].metrics
        assert metrics is not None and worst > 2 * metrics.rel_l2
        (first, *_) = outcome.background.close_ups
        assert outcome.rows[first.row].key == outcome.roots[0].key


def test_a_first_root_without_numbers_says_why_there_is_no_closer_look(tmp_path: Path) -> None:
    class Longer(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.sin(x))

    golden = run(tmp_path / "golden", (1, 1))
    with torch.no_grad(), dumpcmp.capture(net := Longer((1, 1)), tmp_path / "mine"):
        net(torch.linspace(-1, 1, 8)[None])
    told = explain(str(tmp_path / "mine"), golden)
    assert told.exit_code == 1
    assert "No closer look was taken" not in told.output
    assert "No closer look: only one side has it." in told.output, told.output


def test_of_many_rows_of_a_name_the_failing_ones_are_looked_at(tmp_path: Path) -> None:
    golden = run(tmp_path / "golden", (1,) * 31)
    mine = run(tmp_path / "mine", (*[1 + 2**-23] * 30, 1.01))  # the others only round
    told = explain(mine, golden, "*/mul")
    assert told.output.index("Looks like") < told.output.index("PASS: nothing is wrong")
    assert "Looks like: mine is golden's times 1.01" in told.output


def test_one_heir_is_told_of_in_the_singular(tmp_path: Path) -> None:
    golden, mine = run(tmp_path / "golden", (1,)), run(tmp_path / "mine", (1.01,))
    outcome = dumpcmp.compare(golden, mine)
    heirs = sum(row.cause is not None for row in outcome.failures)
    assert heirs == 1, "what the model gives out"
    words = "1 failing row only inherits from it."
    assert words in explain(mine, golden).output
    paths = ["--golden-path", golden, "--my-path", mine, "--output", str(tmp_path / "out")]
    told = CliRunner().invoke(main, ["compare", *paths, "--format", "markdown"])
    assert "1 failing row after it only inherits from it" in told.output
    page = (tmp_path / "out" / "compare.md").read_text()
    assert "1 root, from which 1 failing value inherits:" in page


def test_equal_runs_have_nothing_to_explain_and_wrong_names_are_told() -> None:
    assert explain(GOLDEN, GOLDEN).output.startswith("SAME")
    missing = explain(TARGET, GOLDEN, "layers.1.atn")
    assert missing.exit_code == 2
    assert "no value is called 'layers.1.atn'" in missing.output and "closest" in missing.output
