"""The example of a feed-forward over ranks: the same as on one, and what `--no-sum` breaks."""

from pathlib import Path

from click.testing import CliRunner

import dumpcmp
from dumpcmp.cli import main
from tests.taps.distributed.launching import forked

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_a_sum_that_is_left_out_is_found_between_ranks(tmp_path: Path) -> None:
    program = str(EXAMPLES / "tensor_parallel.py")
    whole, ranks = tmp_path / "whole", tmp_path / "ranks"
    assert CliRunner().invoke(main, ["dump", "--path", str(whole), program]).exit_code == 0
    forked(2, "dumpcmp", "dump", "--path", str(ranks), program)
    assert dumpcmp.compare(whole, ranks).passed
    forked(2, "dumpcmp", "dump", "--overwrite", "--path", str(ranks), program, "--no-sum")
    told = dumpcmp.compare(whole, ranks)
    assert "a reduction is missing" in told.word and told.exit_code == 1
