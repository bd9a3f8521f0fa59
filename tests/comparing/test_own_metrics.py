"""Metrics by msit's definitions, and the user's own, stand in the report beside the others."""

import math
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import dumpcmp
from dumpcmp.cli import main
from dumpcmp.measure.divergence import kl_divergence
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.value import value_of

METRICS = "tests.measure.metrics_of_users"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    room = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), torch.randn(4, 8)
    for name, factor in (("golden", 1.0), ("target", 1.5)):
        with dumpcmp.capture(net, room / name):
            net(x * factor)
    return room / "golden", room / "target"


def test_own_metrics_are_columns(runs: tuple[Path, Path], tmp_path: Path) -> None:
    names = ["kl_divergence", f"{METRICS}:signs", f"{METRICS}:largest"]
    outcome = dumpcmp.compare(*runs, metrics=names)
    table = outcome.to_pandas()
    assert {"kl_divergence", "flipped", "count", "largest.0", "largest.1"} <= set(table.columns)
    row = table[(table.op == "1") & (table.slot == "output.0")].iloc[0]
    assert row["largest.0"] == pytest.approx(row.golden_max)
    assert row["largest.1"] == pytest.approx(row.my_max)
    arguments = [word for name in names for word in ("--metric", name)]
    paths = ["--golden-path", str(runs[0]), "--my-path", str(runs[1]), "--output", str(tmp_path)]
    CliRunner().invoke(main, ["compare", *paths, *arguments])
    heading = (tmp_path / "compare.csv").read_text().splitlines()[0]
    assert heading.endswith("kl_divergence,flipped,count,largest.0,largest.1")


def test_a_metric_that_fails_is_told(runs: tuple[Path, Path]) -> None:
    outcome = dumpcmp.compare(*runs, metrics=f"{METRICS}:raising")
    assert any("ValueError: no such number" in remark for remark in outcome.remarks)
    for name in ("nothing", "math:nothing", "math:pi", "__main__:f"):
        with pytest.raises(SelectionError, match="--metric"):
            dumpcmp.compare(*runs, metrics=name)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_metric_that_ends_its_process_ends_no_comparison(
    runs: tuple[Path, Path], jobs: int
) -> None:
    plain = dumpcmp.compare(*runs)
    outcome = dumpcmp.compare(*runs, metrics=f"{METRICS}:killing", jobs=jobs)
    assert [(row.key, row.verdict) for row in outcome.rows] == [
        (row.key, row.verdict) for row in plain.rows
    ]
    assert any("its process ended (SIGKILL)" in remark for remark in outcome.remarks)


SHAPES = [(5,), (3, 4), (2, 3, 70), (1 << 18,)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("far", [0.0, 1e-3, 1.0, 30.0])
def test_kl_divergence_is_that_of_the_softmax_of_both_sides(
    shape: tuple[int, ...], far: float
) -> None:
    generator = torch.Generator().manual_seed(1)
    golden = 3 * torch.randn(shape, generator=generator)
    target = golden + far * torch.randn(shape, generator=generator)
    logs = [torch.log_softmax(side.double().flatten(), 0) for side in (golden, target)]
    truth = torch.nn.functional.kl_div(logs[1], logs[0], reduction="sum", log_target=True)
    found = kl_divergence(value_of(golden), value_of(target))
    assert found == pytest.approx(float(truth), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_the_metrics_of_msit_by_their_definitions(seed: int) -> None:
    """Where golden has no zeros; its own treat what is below eps as equal."""
    generator = torch.Generator().manual_seed(seed)
    golden = torch.randn(7, 33, generator=generator)
    target = golden + 0.1 * torch.randn(7, 33, generator=generator)
    g, m = golden.double().flatten(), target.double().flatten()
    found = measure(value_of(golden), value_of(target))
    definitions = {
        "cosine": torch.cosine_similarity(g, m, dim=0),
        "max_rel_err_plain": (m / g - 1).abs().max(),
        "mean_rel_err_plain": (m / g - 1).abs().mean(),
        "max_abs_diff": (m - g).abs().max(),
        "mean_abs_diff": (m - g).abs().mean(),
        "rel_l2": ((m - g).square().sum() / g.square().sum()).sqrt(),
    }
    for name, truth in definitions.items():
        assert getattr(found, name) == pytest.approx(float(truth), rel=1e-5), name


def test_two_zeros_have_a_cosine_of_one_and_are_marked(tmp_path: Path) -> None:
    net = nn.ReLU()
    for name in ("golden", "target"):
        with dumpcmp.capture(net, tmp_path / name):
            net(-torch.ones(4))
    table = dumpcmp.compare(tmp_path / "golden", tmp_path / "target").to_pandas()
    output = table[table.slot == "output.0"].iloc[0]
    assert (output.cosine, output.zero) == (1.0, True)
    given = table[table.slot == "input.0"].iloc[0]
    assert (given.cosine, given.zero) == (1.0, False)
    found = measure(value_of(torch.zeros(3)), value_of(torch.ones(3)))
    assert math.isnan(found.cosine)


def test_what_may_be_logits_is_told_the_divergence_of_without_asking(
    runs: tuple[Path, Path],
) -> None:
    rows = dumpcmp.compare(*runs).to_pandas().set_index(["op", "slot"])
    assert set(rows["kl_divergence"].dropna().index) == {  # one value, wherever it appears
        ("<root>", "output.0"), ("1", "output.0"), ("1/tanh", "output.0"),
    }  # fmt: skip
    asked = dumpcmp.compare(*runs, metrics="kl_divergence").to_pandas().set_index(["op", "slot"])
    at = "<root>", "output.0"
    told = rows["kl_divergence"].to_dict()[at]
    assert told == asked["kl_divergence"].to_dict()[at]
    assert told > 0
