"""FSDP1 with use_orig_params: the model runs with views of flat parameters that it gathers."""

from pathlib import Path

import pytest
import torch

from dumpcmp import Archive, capture, compare
from tests.taps.distributed.launching import forked
from tests.taps.distributed.programs.flat_parameters import network, samples, train

PROGRAM = "tests.taps.distributed.programs.flat_parameters"
MODES = ("eager", "aten")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Both modes on two ranks, and what they wrote; each run is bitwise the one uncaptured."""
    path = tmp_path_factory.mktemp("flat")
    return path, forked(2, PROGRAM, str(path))


@pytest.mark.parametrize("mode", MODES)
def test_each_rank_records_the_gradients_that_it_computed(
    runs: tuple[Path, str], mode: str, tmp_path: Path
) -> None:
    archive = Archive(runs[0] / mode)
    found = {
        (key.step, key.op.rpartition(".")[2], key.slot) for key in archive if "grad." in key.slot
    }
    wanted = {(step, "0", f"grad.{word}") for step in range(2) for word in ("weight", "bias")}
    assert found == wanted
    batches = [torch.cat(pair) for pair in zip(samples(0), samples(1), strict=True)]
    train(network(), batches, 2, lambda model: capture(model, tmp_path, mode=mode, backward=True))
    outcome = compare(tmp_path, runs[0] / mode)
    assert not outcome.failures
    assert outcome.exit_code == 2  # the reduction of the last step was not seen
    assert "their mean is golden's value" in outcome.headline


def test_what_was_not_seen_is_told(runs: tuple[Path, str]) -> None:
    assert "gradients of 4 parameters" in runs[1]
    assert "are recorded as this rank computed them" in runs[1]
    for mode in MODES:
        for facts in Archive(runs[0] / mode).run.values():
            assert any("gradients of 4 parameters" in said for said in facts["run"]["remarks"])
