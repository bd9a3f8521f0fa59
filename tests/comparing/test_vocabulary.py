"""Rows of an embedding that a rank has not are nothing to it, however it drops them."""

from pathlib import Path

import pytest

import dumpcmp
from dumpcmp.nouns.outcome import Conclusion
from tests.taps.distributed.launching import forked
from tests.taps.distributed.programs.vocabulary import WAYS, Words, dump


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("read")
    forked(2, "tests.taps.distributed.programs.vocabulary", str(path))
    dump(path / "golden", Words())
    return path


@pytest.mark.parametrize("way", WAYS[:-1])
def test_rows_of_other_ranks_may_be_dropped_in_any_way(read: Path, way: str) -> None:
    assert dumpcmp.compare(read / "golden", read / way).conclusion is Conclusion.SAME


def test_rows_that_are_not_dropped_are_found(read: Path) -> None:
    outcome = dumpcmp.compare(read / "golden", read / WAYS[-1])
    assert outcome.conclusion is Conclusion.PROGRAM
    assert "words" in str(outcome.first_divergence and outcome.first_divergence.key.op)
