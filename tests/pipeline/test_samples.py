"""The sample dumps are what their script builds, and show what the docs say of them."""

import runpy
from pathlib import Path

from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing import compare

SAMPLES = Path(__file__).parents[2] / "sample_dumps"


def test_the_samples_are_what_the_script_builds(tmp_path: Path) -> None:
    script = runpy.run_path(str(SAMPLES / "build.py"))
    script["build"](tmp_path)
    for name in ("golden", "target"):
        outcome = compare(SAMPLES / name, tmp_path / name)
        assert outcome.exit_code == 0, outcome.first_divergence
        assert list(Archive(SAMPLES / name)) == list(Archive(tmp_path / name))


def test_the_samples_show_the_planted_fault() -> None:
    script = runpy.run_path(str(SAMPLES / "build.py"))
    outcome = compare(SAMPLES / "golden", SAMPLES / "target")
    first = outcome.first_divergence
    assert first is not None and first.key.op == script["FAULT"].op
    assert first.key.slot == "output.0" and first.source.startswith("dumpcmp/demo.py:")


def test_the_samples_tell_nothing_of_the_machine_that_made_them() -> None:
    for path in SAMPLES.rglob("*.json"):
        assert not any(word in path.read_text() for word in ("platform", "/home", "Linux", "/tmp"))
