"""Three runs: what is mended, what still fails, and what fails since."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from dumpcmp.cli import main
from dumpcmp.comparing import compare
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.report.earlier import MENDED, NEW, STILL, Earlier

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
GOLDEN, FAULTY = SAMPLES / "golden", SAMPLES / "target"


@pytest.fixture(scope="module")
def outcome_of() -> Callable[[Path], Outcome]:
    known = {mine: compare(GOLDEN, mine) for mine in (GOLDEN, FAULTY)}
    return known.__getitem__


CHANGES = [(FAULTY, GOLDEN, MENDED), (FAULTY, FAULTY, STILL), (GOLDEN, FAULTY, NEW)]


@pytest.mark.parametrize("before, now, change", CHANGES)
def test_every_value_that_failed_or_fails_has_one_change(
    before: Path, now: Path, change: str, outcome_of: Callable[[Path], Outcome]
) -> None:
    earlier = Earlier(outcome_of(before), outcome_of(now))
    assert set(earlier.changes) == {row.key for row in outcome_of(FAULTY).failures}
    assert set(earlier.changes.values()) == {change}
    assert earlier.counts == dict.fromkeys((MENDED, STILL, NEW), 0) | {change: 142}
    cells = [row for row in earlier if row["change"]]
    assert len(cells) == 142 and {row["change"] for row in cells} == {change}
    failed = {row["before"] for row in cells}
    assert failed == ({"PASS"} if before == GOLDEN else {"FAIL"})


def test_compare_tells_what_has_changed(tmp_path: Path) -> None:
    paths = ["--golden-path", str(GOLDEN), "--my-path", str(GOLDEN), "--before-path", str(FAULTY)]
    done = CliRunner().invoke(
        main, ["compare", *paths, "--format", "html", "--output", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    told = " ".join(done.output.split())
    assert "of 142 values that failed, 142 are mended, 0 still fail; 0 values fail" in told
    assert (tmp_path / "compare.html").exists()
