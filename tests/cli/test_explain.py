"""The explain command: one value in words, by its name or as the first divergence."""

from pathlib import Path

from click.testing import CliRunner, Result

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


def test_equal_runs_have_nothing_to_explain_and_wrong_names_are_told() -> None:
    assert explain(GOLDEN, GOLDEN).output.startswith("SAME")
    missing = explain(TARGET, GOLDEN, "layers.1.atn")
    assert missing.exit_code == 2
    assert "no value is called 'layers.1.atn'" in missing.output and "closest" in missing.output
