"""Runs that are not whole, or not as they were written, are never called the same."""

import json
from pathlib import Path

import numpy as np
import pytest

import dumpcmp
from dumpcmp.archive.paths import run_text
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import ROOT
from tests.archive.values import key, put

NUMBERS = np.linspace(1, 2, 3000)


def written(path: Path, **options: int) -> Path:
    with ArchiveWriter(path, **options) as sink:  # type: ignore[arg-type]
        for number, op in enumerate(("layers.0", "layers.1", ROOT)):
            put(sink, key(op), NUMBERS * (number + 1), number)
    return path


def tell(path: Path, **facts: object) -> None:
    run = next(path.glob("*/run.json"))
    run.write_text(run_text(json.loads(run.read_text()) | facts))


def strike(path: Path, op: str) -> None:
    """Zero a hundred elements of a value, behind its digest."""
    location = dumpcmp.Archive(path)[key(op)].location
    assert location is not None
    with location.part.open("r+b") as part:
        part.seek(location.offset + 800)
        part.write(bytes(800))


@pytest.mark.parametrize(
    "facts, said",
    [
        ({"complete": False, "problem": "OSError: disk full"}, "disk full"),
        ({"schema": 99}, "schema 99"),
        ({"run": {"error": "ValueError: mine"}}, "the program raised ValueError: mine"),
    ],
)
def test_a_run_that_is_not_whole_is_not_the_same(
    tmp_path: Path, facts: dict[str, object], said: str
) -> None:
    ours, theirs = written(tmp_path / "d1"), written(tmp_path / "d2")
    assert dumpcmp.compare(ours, theirs).exit_code == 0
    tell(theirs, **facts)
    outcome = dumpcmp.compare(ours, theirs)
    assert outcome.exit_code == 2 and said in outcome.headline
    assert dumpcmp.compare(theirs, ours).exit_code == 2
    assert dumpcmp.compare(ours, theirs, partial=True).exit_code == 0


def test_a_missing_rank_is_not_the_same(tmp_path: Path) -> None:
    both = [written(tmp_path / name, rank=0, world_size=2) for name in ("d1", "d2")]
    assert dumpcmp.compare(*both).exit_code == 2
    assert dumpcmp.compare(*both, partial=True).exit_code == 0


def test_what_is_measured_is_held_against_its_digest(tmp_path: Path) -> None:
    ours, theirs = written(tmp_path / "d1"), written(tmp_path / "d2")
    strike(theirs, "layers.1")
    assert dumpcmp.compare(theirs, ours).exit_code == 2, "it is read as golden"
    with pytest.raises(ArchiveError, match=r"part-0000.h5: .*layers.1.* is damaged"):
        dumpcmp.compare(ours, theirs, verify_digests=True)
    strike(theirs, ROOT)
    with pytest.raises(ArchiveError, match="another digest than was recorded"):
        dumpcmp.compare(ours, theirs)


def test_what_a_run_has_not_recorded_yet_is_no_difference(tmp_path: Path) -> None:
    """A value that one side lacks is one, unless that side is known not to be whole."""
    ours, theirs = written(tmp_path / "d1"), tmp_path / "d2"
    with ArchiveWriter(theirs) as sink:
        for number, op in enumerate(("layers.0", "layers.1")):
            put(sink, key(op), NUMBERS * (number + 1), number)
    assert dumpcmp.compare(ours, theirs).exit_code == 1
    tell(theirs, complete=False, problem="")
    outcome = dumpcmp.compare(ours, theirs)
    assert outcome.exit_code == 2 and "was cut short" in outcome.headline
    assert dumpcmp.compare(ours, theirs, partial=True).exit_code == 1
