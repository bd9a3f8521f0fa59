"""The compare and demo commands: exit codes, options, and what they refuse."""

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from dumpcmp.cli import main
from dumpcmp.dumping.capturing import capture
from dumpcmp.report.formats import free_stem

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
GOLDEN, TARGET = str(SAMPLES / "golden"), str(SAMPLES / "target")


def compare(tmp_path: Path, mine: str, *options: str) -> Result:
    command = ["compare", "--my-path", mine, "--golden-path", GOLDEN]
    return CliRunner().invoke(main, [*command, "--output", str(tmp_path / "out"), *options])


EXITS = [
    ((GOLDEN,), 0),
    ((TARGET,), 1),
    ((TARGET, "--layer", "layers.0*"), 0),  # the fault is in layers.1
    ((TARGET, "--layer", "layers.1*", "--token", "1"), 1),
    ((TARGET, "--checker", "cosine", "--cosine", "0.5"), 0),
    ((TARGET, "--pcc", "0.5", "--rtol", "1"), 0),
    ((TARGET, "--rtol", "10", "--atol", "10"), 0),
    ((TARGET, "--checker", "allclose"), 1),
    ((TARGET, "--checker", "full"), 1),
    ((TARGET, "--checker", "exact"), 1),
    ((GOLDEN, "--checker", "exact"), 0),
    ((GOLDEN, "--reference", GOLDEN), 0),
    ((GOLDEN, "--jobs", "2"), 0),
    ((TARGET, "--layer", "nothing.like.it"), 2),
    ((GOLDEN, "--token", "77"), 2),
]


@pytest.mark.parametrize(
    "arguments, code", EXITS, ids=lambda v: " ".join(v[1:]) if isinstance(v, tuple) else str(v)
)
def test_exit_codes(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    result = compare(tmp_path, *arguments)
    assert result.exit_code == code, result.output


SCALED = """
import torch

class Scaled(torch.nn.Module):
    def __init__(self, factor=1):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * (self.factor * 2 if torch.compiler.is_compiling() else self.factor)

def build():
    return Scaled(), {"x": torch.arange(8.0)}
"""


@pytest.mark.parametrize("checker, code", [("auto", 1), ("pcc", 0)])
def test_a_checker_has_one_meaning_in_all_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checker: str, code: int
) -> None:
    """Twice the value has a PCC of 1: rounding does not explain it, tt-forge's rule passes it."""
    (tmp_path / "scaled_model.py").write_text(SCALED)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = importlib.import_module("scaled_model").Scaled
    for factor in (1, 2):
        scaled = model(factor)
        with capture(scaled, tmp_path / f"times{factor}"):
            scaled(torch.arange(8.0))
    sides = ["--golden-path", str(tmp_path / "times1"), "--my-path", str(tmp_path / "times2")]
    commands = (
        ["compare", *sides, "--output", str(tmp_path / "out")],
        ["verify", "--model", "scaled_model:build", "--backend", "eager"],
    )
    for command in commands:
        result = CliRunner().invoke(main, [*command, "--checker", checker])
        assert result.exit_code == code, (command[0], result.output)


REFUSED = [
    (("--checker", "vibes"), "'vibes' is not known"),
    (("--checker", "cosine", "--rtol", "1"), "does not heed --rtol"),
    (("--format", "xls"), "'xls' is not known"),
    (("--token", "x"), "cannot read 'x' as a token"),
    (("--mapping", "no/such.yaml"), "cannot read the mapping"),
]


@pytest.mark.parametrize(
    "options, told", REFUSED, ids=lambda v: " ".join(v) if isinstance(v, tuple) else ""
)
def test_nonsense_is_trouble_and_says_why(
    tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    result = compare(tmp_path, TARGET, *options)
    assert result.exit_code == 2 and told in result.output


def test_a_path_without_an_archive_is_trouble(tmp_path: Path) -> None:
    result = compare(tmp_path, str(tmp_path))
    assert result.exit_code == 2 and "is not an archive" in result.output


def test_files_are_where_the_summary_says(tmp_path: Path) -> None:
    result = compare(tmp_path, TARGET, "--format", "csv,json")
    assert str(tmp_path / "out" / "compare.csv") in result.output.replace("\n", "")
    told = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert told["first_divergence"]["op"] == "layers.1.attn.o_proj/linear"


def test_jobs_do_not_change_the_report(tmp_path: Path) -> None:
    for jobs in ("1", "2"):
        compare(tmp_path / jobs, TARGET, "--jobs", jobs)
    reports = [(tmp_path / jobs / "out" / "compare.csv").read_text() for jobs in ("1", "2")]
    assert reports[0] == reports[1]


def test_a_mapping_lays_renamed_ops_side_by_side(tmp_path: Path) -> None:
    mapping = tmp_path / "map.yaml"
    mapping.write_text("layers.0: layers.1\nlayers.1: layers.0\n")
    result = compare(tmp_path, GOLDEN, "--mapping", str(mapping))
    assert result.exit_code == 1 and "UNPAIRED" not in result.output


def test_help_is_instant() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "dumpcmp", "compare", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not loaded & {"torch", "numpy", "pandas", "h5py", "rich.console"}


def test_the_demo_finds_its_fault_in_time(tmp_path: Path) -> None:
    begin = time.monotonic()
    result = CliRunner().invoke(main, ["demo", "--output", str(tmp_path / "demo")])
    assert result.exit_code == 0, result.output
    told = result.output.replace("\n", "")
    assert "First divergence: layers.1.mlp.down_proj/linear" in told
    assert "compare.csv" in told and "Next:" in told
    assert time.monotonic() - begin < 120


def test_an_earlier_report_is_kept(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        names.append(free_stem(tmp_path))
        (tmp_path / f"{names[-1]}.csv").touch()
    assert names == ["compare", "compare-2", "compare-3"]
