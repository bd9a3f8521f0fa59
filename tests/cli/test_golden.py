"""Golden fixtures: a run in a small file, programs held against it, and what is refused."""

import io
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import dumpcmp
from dumpcmp import demo
from dumpcmp.cli import main
from dumpcmp.dumping.capturing import capture
from dumpcmp.golden import check_golden, pack_golden
from dumpcmp.nouns.errors import DumpcmpError, VerificationError
from dumpcmp.nouns.outcome import Conclusion

FAULTY = """
import torch
import dumpcmp
from dumpcmp import demo

model, (tokens,) = demo.build()
with torch.no_grad():
    model.layers[1].mlp.down_proj.weight *= 1.5
demo.generate(model, 2)
"""


def golden(*words: str) -> Result:
    return CliRunner().invoke(main, ["golden", *words])


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("golden")
    model, _ = demo.build()
    with capture(model, room / "d1"):
        demo.generate(model, 2)
    return pack_golden(room / "d1", room / "golden.tar").path


def same_program() -> None:
    demo.generate(demo.build()[0], 2)


def test_the_same_program_passes_and_the_fixture_is_small(fixture: Path) -> None:
    checked = check_golden(fixture, same_program)
    assert checked.outcome.conclusion is Conclusion.SAME and checked.differences == ()
    assert fixture.stat().st_size < 500_000


def test_a_fault_is_found_against_summaries(fixture: Path, tmp_path: Path) -> None:
    script = tmp_path / "faulty.py"
    script.write_text(FAULTY)
    out = tmp_path / "out"
    told = golden("check", "--output", str(out), "--format", "markdown", str(fixture), str(script))
    assert told.exit_code == 1, told.output
    assert "down_proj" in told.output.splitlines()[0]
    report = (out / "compare.md").read_text()
    assert "down_proj" in report and "dumpcmp explain MINE GOLDEN" in report
    assert "tmp" not in report and "command:" not in report  # which are gone, or of the check


def test_a_fixture_is_no_archive_and_says_what_to_do(fixture: Path) -> None:
    with pytest.raises(DumpcmpError) as caught:
        dumpcmp.compare(fixture, fixture.parent / "d1")
    assert caught.value.hint and f"dumpcmp golden check {fixture} PROGRAM" in caught.value.hint


def test_a_fixture_is_not_overwritten_unasked(fixture: Path) -> None:
    archive = fixture.parent / "d1"
    again = golden("pack", str(archive), str(fixture))
    assert again.exit_code == 2 and "is there already" in again.output
    assert golden("pack", str(archive), str(fixture), "--overwrite").exit_code == 0


def test_a_program_that_fails_is_trouble(fixture: Path, tmp_path: Path) -> None:
    script = tmp_path / "raises.py"
    script.write_text("raise ValueError('no')")
    told = golden("check", str(fixture), str(script))
    assert told.exit_code == 2 and "was not recorded" in told.output


def test_without_a_program_nothing_is_run(fixture: Path, tmp_path: Path) -> None:
    told = golden("check", "--path", str(tmp_path / "d2"), str(fixture))
    assert told.exit_code == 2, told.output
    assert "no program is given" in told.output
    for word in ("SCRIPT", "-m MODULE", "--model PKG:FUNC"):
        assert word in told.output
    assert not (tmp_path / "d2").exists()
    factory = golden("check", "--model", "dumpcmp.demo:build", str(fixture))
    assert "no program is given" not in factory.output


@pytest.mark.parametrize("name", ["../evil", "/evil", "run/../../evil"])
def test_a_hostile_fixture_writes_nothing_outside(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.tar"
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(DumpcmpError, match="which no fixture has"):
        check_golden(path, same_program)
    path.write_bytes(b"nothing")
    with pytest.raises(DumpcmpError, match="is no golden fixture") as caught:
        check_golden(path, same_program)
    assert "\n" not in caught.value.message


def test_a_script_is_checked_from_python(fixture: Path, tmp_path: Path) -> None:
    script = tmp_path / "faulty.py"
    script.write_text(FAULTY)
    with pytest.raises(VerificationError, match="down_proj"):
        dumpcmp.check_golden(fixture, script).raise_for_status()
