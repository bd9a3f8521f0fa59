"""A run's manifest: whatever is taken from an archive, added or exchanged, every reader says so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dumpcmp
from dumpcmp import audit, compact
from dumpcmp.archive.manifest import Manifest, PartCount, read_manifest
from dumpcmp.archive.paths import read_run
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.schema import SCHEMA_VERSION
from dumpcmp.archive.upload import upload
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.cli import main
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call
from tests.archive.test_hostile import rewritten
from tests.archive.values import Dense, parts, put, record

STEPS = 4


def put_step(sink: ArchiveWriter, step: int, num_ops: int = 3) -> None:
    for order in range(num_ops):
        op, bits = Op(f"layers.{order}"), np.full(2000, 10.0 * step + order)
        sink.call(Call("Model", step, op, 0, order, "torch.f", "m.py:1"))
        for slot in ("input.0", "output.0"):
            put(sink, Key("Model", step, op, 0, slot), bits, order)


def written(path: Path, steps: int = STEPS, **options: Any) -> Path:
    with ArchiveWriter(path, **options) as sink:
        for step in range(steps):
            put_step(sink, step)
            sink.finish_step("Model", step)
    return path


def rank_of(path: Path) -> Path:
    return next(path.glob("worldsize*"))


def step_of(path: Path, step: int) -> Path:
    return rank_of(path) / "Model" / str(step)


def last_token(path: Path) -> None:
    shutil.rmtree(step_of(path, STEPS - 1))


def middle_token(path: Path) -> None:
    shutil.rmtree(step_of(path, 1))


def all_tokens_but_one(path: Path) -> None:
    for step in range(1, STEPS):
        shutil.rmtree(step_of(path, step))


def a_part(path: Path) -> None:
    parts(path)[1].unlink()


def a_token_in_the_place_of_another(path: Path) -> None:
    shutil.rmtree(step_of(path, 2))
    shutil.copytree(step_of(path, 1), step_of(path, 2))


def a_token_that_is_added(path: Path) -> None:
    shutil.copytree(step_of(path, 0), step_of(path, STEPS))


def a_shorter_token_in_its_place(path: Path) -> None:
    with ArchiveWriter(path.with_name("other")) as sink:
        put_step(sink, 2, num_ops=2)
    shutil.rmtree(step_of(path, 2))
    shutil.copytree(step_of(path.with_name("other"), 2), step_of(path, 2))
    shutil.rmtree(path.with_name("other"))


def the_manifest(path: Path) -> None:
    (rank_of(path) / "manifest.json").unlink()


def a_line_of_the_manifest(path: Path) -> None:
    """With the token that it tells of: the seals of the others do not fit any more."""
    place = rank_of(path) / "manifest.json"
    lines = json.loads(place.read_text())
    place.write_text(json.dumps([line for line in lines if line[1] != 1]))
    middle_token(path)


def a_manifest_of_another_run(path: Path) -> None:
    other = rank_of(written(path.with_name("other"), steps=2)) / "manifest.json"
    shutil.copy(other, rank_of(path))
    shutil.rmtree(path.with_name("other"))


def a_manifest_that_is_no_manifest(path: Path) -> None:
    (rank_of(path) / "manifest.json").write_text("[[1, 2]]")


TAKEN: dict[Callable[[Path], None], str] = {
    last_token: "token 3 of Model is gone, with 6 values",
    middle_token: "token 1 of Model is gone, with 6 values",
    all_tokens_but_one: "tokens 1, 2, 3 of Model are gone, with 18 values",
    a_part: "part 0 is gone",
    a_token_in_the_place_of_another: "it says that it is part 0 of token 1",
    a_token_that_is_added: "token 4 of Model was not written by this run",
    a_shorter_token_in_its_place: "part 0 has 2 of 3 input values",
    the_manifest: "manifest.json, which run.json names, cannot be read",
    a_line_of_the_manifest: "is not the one that run.json names",
    a_manifest_of_another_run: "is not the one that run.json names",
    a_manifest_that_is_no_manifest: "cannot be read: it is no list of parts",
}


@pytest.mark.parametrize("take", TAKEN)
def test_what_is_taken_from_both_sides_is_told_by_every_reader(
    take: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden, target = written(tmp_path / "golden"), written(tmp_path / "target")
    assert dumpcmp.compare(golden, target).exit_code == 0 and audit(golden).sound
    for path in (golden, target):
        take(path)
    outcome = dumpcmp.compare(golden, target)
    assert outcome.exit_code == 2
    for side in ("golden", "my side"):
        assert any(side in said and TAKEN[take] in said for said in outcome.missing)
    archive = Archive(golden)
    list(archive)
    assert any(TAKEN[take] in problem for problem in archive.problems)
    found = audit(golden)
    assert not found.sound and any(TAKEN[take] in flaw.problem for flaw in found.findings)
    with pytest.raises(SystemExit):
        main(["show", str(golden)])
    told = capsys.readouterr().out
    assert "incomplete: " in told and TAKEN[take].partition(", with")[0] in told


@pytest.mark.parametrize("take", [last_token, middle_token, a_part])
def test_what_is_left_is_compared_where_that_is_asked_for(
    take: Callable[[Path], None], tmp_path: Path
) -> None:
    golden, target = written(tmp_path / "golden"), written(tmp_path / "target")
    for path in (golden, target):
        take(path)
    assert dumpcmp.compare(golden, target, partial=True).exit_code == 0


@pytest.mark.parametrize("change", [compact, lambda path: [*map(rewritten, parts(path))]])
def test_parts_that_are_written_anew_still_hold_what_the_run_wrote(
    change: Callable[[Path], object], tmp_path: Path
) -> None:
    path = written(tmp_path / "d")
    before = (rank_of(path) / "manifest.json").read_bytes()
    change(path)
    assert (rank_of(path) / "manifest.json").read_bytes() == before
    archive = Archive(path)
    assert len(archive) == 6 * STEPS and archive.complete and not archive.problems
    assert change is not compact or audit(path).sound


def test_several_parts_of_a_step_are_each_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "d", part_nbytes=1)
    manifest = read_manifest(rank_of(path), read_run(rank_of(path)))
    assert manifest is not None and len(manifest.parts) == len(parts(path)) > STEPS
    assert sum(part.num_values for part in manifest.parts) == 6 * STEPS
    assert audit(path).sound
    parts(path)[-1].unlink()
    assert not audit(path).sound


def test_a_run_that_did_not_end_in_order_has_none(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), ArchiveWriter(tmp_path / "d") as sink:
        put_step(sink, 0)
        raise ZeroDivisionError
    assert not (rank_of(tmp_path / "d") / "manifest.json").exists()
    assert read_run(rank_of(tmp_path / "d"))["manifest"] == ""


def as_version_4(path: Path) -> None:
    """Make of the archive one of the version before, which had no manifest."""
    place = rank_of(path) / "run.json"
    facts = json.loads(place.read_text())
    del facts["manifest"], facts["digest"]
    place.write_text(json.dumps(facts | {"schema": 4}))
    (rank_of(path) / "manifest.json").unlink()


def test_runs_of_the_version_before_are_held_against_their_count(tmp_path: Path) -> None:
    path = written(tmp_path / "d")
    as_version_4(path)
    assert audit(path).exit_code == 0 and Archive(path).complete
    last_token(path)
    assert audit(path).exit_code == 1
    archive = Archive(path)
    list(archive)
    assert any("run.json counts 24 values, and 18 are found" in p for p in archive.problems)


def test_a_part_of_equal_counts_and_other_names_is_found_by_an_audit(tmp_path: Path) -> None:
    path, other = written(tmp_path / "d"), tmp_path / "other"
    with ArchiveWriter(other) as sink:
        for order in range(3):
            op = Op(f"blocks.{order}")
            sink.call(Call("Model", 2, op, 0, order, "torch.f", "m.py:1"))
            for slot in ("input.0", "output.0"):
                key = Key("Model", 2, op, 0, slot)
                bits = np.zeros(10)
                sink.put(record(key, bits, order=order), Dense(bits))
    shutil.copy(parts(other)[0], step_of(path, 2))
    found = audit(path)
    assert [flaw.problem for flaw in found.findings if flaw.stands] == [
        "token 2 of Model: part 0 holds other values than the run wrote"
    ]


LINE = PartCount("Model", 0, 0, {"output": 3}, "0" * 32)


def test_a_seal_depends_on_every_line_and_on_their_order() -> None:
    others = [PartCount("Model", step, 0, {"output": 3}, "0" * 32) for step in range(3)]
    seals = {Manifest(tuple(lines)).seal for lines in
             ([], others[:1], others[:2], others, others[::-1], [*others, LINE])}  # fmt: skip
    assert len(seals) == 6


@pytest.mark.parametrize(
    "line", [None, [], [1] * 6, ["M", 0, 0, {"output": "3"}, "x", "y"], {"a": 1}, [[]] * 6]
)
def test_lines_that_are_none_are_refused_in_a_sentence(line: Any, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps([line]))
    with pytest.raises(ArchiveError, match=r"which run\.json names, cannot be read"):
        read_manifest(tmp_path, {"complete": True, "manifest": "x"})


@pytest.mark.parametrize("place", range(6))
def test_every_column_of_a_line_is_held_against_the_seal(place: int, tmp_path: Path) -> None:
    manifest = Manifest((LINE, PartCount("Model", 1, 0, {"output": 3}, "0" * 32)))
    manifest.write(tmp_path)
    facts = {"complete": True, "manifest": manifest.seal}
    assert read_manifest(tmp_path, facts) == manifest
    lines = json.loads((tmp_path / "manifest.json").read_text())
    told = lines[0][place]
    lines[0][place] = {"output": 4} if isinstance(told, dict) else told + type(told)(1)
    (tmp_path / "manifest.json").write_text(json.dumps(lines))
    with pytest.raises(ArchiveError, match=r"run\.json names"):
        read_manifest(tmp_path, facts)


def test_a_bit_that_flips_in_run_json_is_told(tmp_path: Path) -> None:
    """Any bit: the file is damaged then, or says the same; one of the digest's own name."""
    rank = rank_of(written(tmp_path / "run"))
    place, facts = rank / "run.json", read_run(rank)
    assert facts.pop("digest")
    content, num_refused = place.read_bytes(), 0
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        place.write_bytes(changed)
        found = read_run(rank)
        num_refused += not found
        if found and found.get("schema") != SCHEMA_VERSION:
            continue  # which readers refuse
        assert not found or {name: found.get(name) for name in facts} == facts, bytes(changed)
    assert num_refused > 0.95 * 8 * len(content)
    place.write_bytes(content.replace(b'"num_records": ', b'"num_records": 1'))
    assert not audit(tmp_path / "run").sound
    assert dumpcmp.compare(tmp_path / "run", tmp_path / "run").exit_code == 2


def test_an_audit_says_that_it_cannot_know_where_a_run_has_no_digest(tmp_path: Path) -> None:
    """As in archives of before: they are read, and whatever their run.json says is believed."""
    path = written(tmp_path / "run")
    place = rank_of(path) / "run.json"
    facts = read_run(place.parent)
    del facts["digest"]
    place.write_text(json.dumps(facts))
    assert read_run(place.parent) == facts
    found = audit(path)
    assert not found.sound and found.exit_code == 0
    (unknown,) = found.findings
    assert unknown.unknown and "it has no digest" in unknown.problem
    ran = CliRunner().invoke(main, ["audit", str(path)])
    assert ran.exit_code == 0
    assert "nothing wrong found, not all known: 24 records" in ran.output
    last_token(path)
    assert audit(path).exit_code == 1


def test_an_upload_gives_no_digest_to_facts_that_had_none(tmp_path: Path) -> None:
    path = written(tmp_path / "run")
    as_version_4(path)
    there = f"memory://{tmp_path.name}/run"
    upload(path, there)
    assert not audit(there).sound and audit(there).exit_code == 0
