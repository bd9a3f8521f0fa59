"""FSDP2 in aten mode: its buffers are read by nobody before they are written."""

from pathlib import Path

import pytest

from dumpcmp import compare
from dumpcmp.comparing.side import open_side
from dumpcmp.nouns.selection import Tap
from tests.taps.distributed.launching import forked


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, twice."""
    path = tmp_path_factory.mktemp("dispatched")
    forked(2, "tests.taps.distributed.programs.dispatched", str(path), "golden", "target")
    return path


def test_how_ranks_move_values_is_no_op_of_the_dispatcher(runs: Path) -> None:
    listing = open_side(runs / "golden", Tap()).listing
    functions = {site.op.function for site in listing.calls}
    assert {"all_gather", "reduce_scatter", "aten.addmm", "backward.aten.mm"} <= functions
    assert not [name for name in functions if "c10d" in name or "fsdp" in name]


def test_the_same_run_is_the_same(runs: Path) -> None:
    outcome = compare(runs / "golden", runs / "target")
    assert outcome.exit_code == 0, outcome
    assert not outcome.failures
