"""What each rank has after the last step: weights, buffers, and what optimizers keep."""

from pathlib import Path

import pytest

from dumpcmp import Archive, Verdict, compare
from dumpcmp.nouns.effects import Effect
from tests.taps.distributed.launching import forked
from tests.taps.distributed.programs.end_states import FAULTS, WAYS, train

PROGRAM = "tests.taps.distributed.programs.end_states"
PLACES = {
    "still": "buffer.still",
    "counted": "buffer.counted",
    "kept": "output.state.first.weight.exp_avg",
    "weight": "param.first.weight",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on one device, and those on two ranks."""
    path = tmp_path_factory.mktemp("ends")
    train(path / "golden", 0, 1, "", "sound")
    forked(2, PROGRAM, str(path))
    return path


@pytest.mark.parametrize("way", WAYS)
def test_a_sound_run_ends_as_on_one_device(runs: Path, way: str) -> None:
    outcome = compare(runs / "golden", runs / f"{way}-sound")
    assert outcome.exit_code == 0, outcome.word
    ends = {row.key.op for row in outcome.rows if row.key.op.is_effect}
    assert {Effect.STATE.op, Effect.OPTIMIZER.op} <= ends


@pytest.mark.each_value_once
@pytest.mark.parametrize("fault", FAULTS[1:])
@pytest.mark.parametrize("way", WAYS)
def test_a_rank_that_ends_otherwise_is_named(runs: Path, way: str, fault: str) -> None:
    outcome = compare(runs / "golden", runs / f"{way}-{fault}")
    assert outcome.exit_code != 0
    failed = [row for row in outcome.rows if row.verdict not in (Verdict.PASS, Verdict.SKIPPED)]
    assert {str(row.key.slot) for row in failed} == {PLACES[fault]}
    assert all("rank 1" in row.reason for row in failed)


def test_runs_tell_which_ends_they_record(runs: Path) -> None:
    for way in WAYS:
        for facts in Archive(runs / f"{way}-sound").run.values():
            assert {Effect.STATE, Effect.OPTIMIZER} <= set(facts["run"]["effects"])
