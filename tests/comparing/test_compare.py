"""Comparing whole archives: references, selections, executors, memory, and rows for everything."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from benchmarks.cases import FAULTS, split_matmuls
from benchmarks.faults import dumped
from benchmarks.subjects import SUBJECTS
from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing import compare
from dumpcmp.dumping.capturing import capture
from dumpcmp.judge import Fp64Checker
from dumpcmp.nouns.errors import CheckError, SelectionError
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Verdict
from tests.choosing_cases import often

DECODER = SUBJECTS["decoder"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Archives of the decoder in several precisions, and one with a fault."""
    room = tmp_path_factory.mktemp("runs")
    scaled = next(case for case in FAULTS["decoder"] if case.name == "scaled by 1.01")
    found = {dtype: dumped(DECODER, room / dtype, dtype=dtype) for dtype in ("float32", "bfloat16")}
    found["faulty"] = dumped(DECODER, room / "faulty", scaled.plant)
    found["split"] = dumped(DECODER, room / "split", split_matmuls)
    model = DECODER.model()
    with capture(model, room / "float64", dtype="float64"):
        DECODER.run(model)
    found["float64"] = room / "float64"
    return found


def told(outcome: Outcome) -> list[tuple[object, ...]]:
    return [(row.key, row.verdict, row.root, row.cause, str(row.metrics)) for row in outcome.rows]


@pytest.mark.parametrize(
    "mine", often(["float32", "faulty", "split", "bfloat16"], "faulty", "split")
)
def test_every_value_of_either_run_has_one_row(runs: dict[str, Path], mine: str) -> None:
    rows = compare(runs["float32"], runs[mine]).rows
    ours = [row.golden_key for row in rows if row.golden_key]
    theirs = [row.target_key for row in rows if row.target_key]
    assert sorted(ours) == sorted(Archive(runs["float32"]))
    assert sorted(theirs) == sorted(Archive(runs[mine]))


def test_results_do_not_depend_on_who_measures(runs: dict[str, Path]) -> None:
    serial = told(compare(runs["float32"], runs["faulty"]))
    with ThreadPoolExecutor(3) as executor:
        assert told(compare(runs["float32"], runs["faulty"], executor=executor)) == serial


def test_progress_ends_at_all_bytes(runs: dict[str, Path]) -> None:
    seen: list[tuple[int, int]] = []
    compare(runs["float32"], runs["split"], progress=lambda done, all_: seen.append((done, all_)))
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] > 0


def test_what_is_nearer_to_the_reference_than_golden_passes(runs: dict[str, Path]) -> None:
    outcome = compare(runs["bfloat16"], runs["float32"], reference=runs["float64"])
    assert outcome.exit_code == 0
    ratios = [e[1] / e[0] for row in outcome.rows if (e := row.reference_errors) and e[0]]
    assert len(ratios) > 100 and sorted(ratios)[len(ratios) // 2] < 0.01


def test_a_fault_is_farther_from_the_reference(runs: dict[str, Path]) -> None:
    outcome = compare(runs["float32"], runs["faulty"], reference=runs["float64"])
    first = outcome.first_divergence
    assert first is not None and first.key.op == "layers.1.mlp.down_proj/linear"
    assert first.reference_errors is not None
    assert first.reference_errors[1] > 1000 * first.reference_errors[0]


def test_a_rule_that_needs_a_reference_says_so(runs: dict[str, Path]) -> None:
    with pytest.raises(CheckError, match="higher precision"):
        compare(runs["float32"], runs["faulty"], checker=Fp64Checker())
    sides = runs["float32"], runs["faulty"]
    outcome = compare(*sides, reference=runs["float64"], checker=Fp64Checker())
    first = outcome.first_divergence
    assert first is not None and first.key.op == "layers.1.mlp.down_proj/linear"


def test_a_benign_variant_is_as_near_to_the_reference(runs: dict[str, Path]) -> None:
    outcome = compare(runs["float32"], runs["split"], reference=runs["float64"])
    assert outcome.exit_code == 0, outcome.first_divergence


def test_a_selection_compares_less(runs: dict[str, Path]) -> None:
    outcome = compare(runs["float32"], runs["faulty"], layers="layers.0*", tokens="0-1")
    assert outcome.exit_code == 0
    assert {row.key.step for row in outcome.rows} == {0, 1}
    assert all(row.key.op.startswith("layers.0") for row in outcome.rows)


def test_a_selection_of_nothing_is_trouble_with_a_remark(runs: dict[str, Path]) -> None:
    outcome = compare(runs["float32"], runs["faulty"], layers="layer.0")
    assert outcome.exit_code == 2 and "closest: " in outcome.remarks[0]
    with pytest.raises(SelectionError, match="runs backwards"):
        compare(runs["float32"], runs["faulty"], tokens="3-1")


def test_more_tokens_on_one_side_are_rows(runs: dict[str, Path], tmp_path: Path) -> None:
    model = DECODER.model()
    with capture(model, tmp_path / "short", tokens="0"):
        DECODER.run(model)
    outcome = compare(runs["float32"], tmp_path / "short")
    verdicts = {row.key.step: row.verdict for row in outcome.rows}
    assert verdicts == {0: Verdict.PASS, 1: Verdict.SKIPPED, 2: Verdict.SKIPPED}  # as was asked for
    assert outcome.first_divergence is None


def test_another_shape_of_the_same_size_is_a_verdict(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self, rows: int) -> None:
            super().__init__()
            self.rows = rows

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(self.rows, -1) * 2

    for name, rows in (("golden", 2), ("mine", 3)):
        net = Net(rows)
        with capture(net, tmp_path / name):
            net(torch.ones(6))
    outcome = compare(tmp_path / "golden", tmp_path / "mine")
    found = {(str(row.key.op), str(row.key.slot)): row.verdict for row in outcome.rows}
    assert found["<root>", "input.0"] is Verdict.PASS
    assert found["<root>", "output.0"] is Verdict.SHAPE
    first = outcome.first_divergence
    assert first is not None and first.key.op == "<root>/view"


MEMORY = """
import resource, sys
import numpy as np
from dumpcmp.comparing import compare
compare(sys.argv[1], sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
outcome = compare(sys.argv[1], sys.argv[2])
assert outcome.exit_code == 1, outcome.tally
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    """A pair of 128 MB tensors takes what is mapped and little more."""
    size = 1 << 25
    for name, factor in (("golden", 1.0), ("mine", 1.001)):
        net = torch.nn.Identity()
        with capture(net, tmp_path / name, io="input"):
            net(torch.full((size,), factor))
    paths = [str(tmp_path / name) for name in ("golden", "mine")]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, *paths], capture_output=True, text=True, check=True
    )
    beyond = int(done.stdout) * 1024 - 4 * size  # golden was mapped before
    assert beyond < 100e6, done.stdout
