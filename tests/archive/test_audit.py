"""An audit finds what was done to an archive, names the place, and repairs only what it can."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.paths import run_text
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from tests.archive.values import key, loaded, parts, put, record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two ranks, two steps, several parts, a link within a part and one across."""
    for rank in (0, 1):
        with ArchiveWriter(tmp_path / "d", rank=rank, world_size=2, part_nbytes=30_000) as sink:
            for step in (0, 1):
                put(sink, key("first", step=step), np.arange(500.0))
                for number in range(20):
                    put(sink, key("op", f"output.{number}", step), np.full(500, float(number)))
                link = record(key("last", "input.0", step), np.arange(500.0))
                sink.put(replace(link, same_as=key("first", step=step)), None)
    return tmp_path / "d"


def rank0(path: Path) -> Path:
    return path / "worldsize2_global_rank0"


def flip_value(path: Path) -> str:
    record = Archive(path)[key("op", "output.3")]
    assert record.location is not None
    change(record.location.part, record.location.offset + 5)
    return "op#0 output.3: its 4000 bytes at"


def change(part: Path, at: int) -> None:
    content = bytearray(part.read_bytes())
    content[at] ^= 0x10
    part.write_bytes(content)


def cut_part(path: Path) -> str:
    part = parts(rank0(path))[-1]
    part.write_bytes(part.read_bytes()[:-3000])
    return "not sealed"


def empty_part(path: Path) -> str:
    parts(rank0(path) / "Model" / "1")[-1].write_bytes(b"")
    return "the part holds nothing"


def remove_part(path: Path) -> str:
    parts(rank0(path) / "Model" / "0")[1].unlink()
    return "part 1 is missing"


def remove_first_part(path: Path) -> str:
    parts(rank0(path) / "Model" / "0")[0].unlink()
    return "links to row 0 of part 0, which is not there"


def remove_step(path: Path) -> str:
    for part in parts(rank0(path) / "Model" / "1"):
        part.unlink()
    (rank0(path) / "Model" / "1").rmdir()
    return "rank 0 has no step 1 of Model"


def remove_rank(path: Path) -> str:
    rank0(path).rename(path.parent / "elsewhere")
    return "rank 0 of 2 is missing"


def break_run(path: Path) -> str:
    (rank0(path) / "run.json").write_text("{")
    return "cannot be read"


def leave_draft(path: Path) -> str:
    (rank0(path) / "Model" / "0" / ".draft-x").mkdir()
    return "a draft that nobody finished"


def leave_empty_step(path: Path) -> str:
    (rank0(path) / "Model" / "2").mkdir()
    return "the step has no parts"


def leave_new_part(path: Path) -> str:
    (rank0(path) / "Model" / "0" / ".new-part-0009.h5").write_bytes(b"x")
    return "a draft that nobody finished"


def break_object_header(path: Path) -> str:
    part = parts(rank0(path))[0]
    row = h5py.File(part)["_index/records"][0]
    change(part, int(row["header"]) + 16 + 8 + 2)
    return "points elsewhere than the index"


def break_index(path: Path) -> str:
    part = parts(rank0(path))[0]
    with h5py.File(part) as file:
        at = h5py.h5o.get_info(file["_index"].id).addr
    change(part, at)
    return "not sealed"


def change_index(path: Path, name: str, at: int) -> None:
    part = parts(rank0(path))[0]
    with h5py.File(part) as file:
        start = file[f"_index/{name}"].id.get_offset()
    change(part, start + at)


def index_text(path: Path, name: str) -> bytes:
    with h5py.File(parts(rank0(path))[0]) as file:
        text: bytes = file[f"_index/{name}"][()]
    return text


def change_call(path: Path) -> str:
    change_index(path, "calls", index_text(path, "calls").index(b"first"))
    return "call 0 of the index has op 'virst', its journal 'first'"


def change_form(path: Path) -> str:
    change_index(path, "forms", index_text(path, "forms").index(b"cpu"))
    return "form 0 of the index has device 'spu', its journal 'cpu'"


def change_row(path: Path) -> str:
    change_index(path, "records", 8)  # after the numbers of its call and its form
    return "row 0 of the index has order 16, its journal 0"


DAMAGE: dict[Callable[[Path], str], bool] = {  # what is done -> whether it can be repaired
    flip_value: False,
    cut_part: True,
    empty_part: True,
    remove_part: False,
    remove_first_part: False,
    remove_step: False,
    remove_rank: False,
    break_run: True,
    leave_draft: True,
    leave_new_part: True,
    leave_empty_step: True,
    break_object_header: False,
    break_index: True,
    change_call: False,
    change_form: False,
    change_row: False,
}


def test_a_whole_archive_is_sound(path: Path) -> None:
    found = audit(path)
    assert found.exit_code == 0 and found.findings == ()
    assert found.num_records == 2 * 2 * 22 and found.nbytes == 2 * 2 * 21 * 4000


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_named(path: Path, damage: Callable[[Path], str]) -> None:
    wanted = damage(path)
    found = audit(path)
    assert found.exit_code == 1
    assert any(wanted in finding.problem for finding in found.findings), found.findings
    mended = audit(path, repair=True)
    assert mended.sound is DAMAGE[damage], mended.findings
    assert audit(path).sound is DAMAGE[damage]


def test_repair_keeps_every_value_that_the_journal_holds(path: Path) -> None:
    wanted = {name: loaded(Archive(path), name).copy() for name in Archive(path)}
    break_index(path)
    audit(path, repair=True)
    archive = Archive(path)
    assert set(archive) == set(wanted)
    for name, bits in wanted.items():
        np.testing.assert_array_equal(loaded(archive, name), bits)
    with h5py.File(parts(rank0(path))[0]) as file:
        assert "_index" in file and (file["op#0/output.0"][()] == 0).all()


def test_a_writer_on_another_host_is_let_alone_until_it_is_silent(path: Path) -> None:
    place = rank0(path) / "run.json"
    told = json.loads(place.read_text()) | {"complete": False}
    told["writer"] = {"host": "elsewhere", "pid": 1, "began": "1", "ring": None}
    place.write_text(run_text(told))
    assert "still running" in " ".join(Archive(path).problems)
    assert audit(path, repair=True).findings[0].harmless
    for file in rank0(path).rglob("*"):
        os.utime(file, (0, 0))
    assert "cut short" in " ".join(Archive(path).problems)
    assert audit(path).exit_code == 1 and audit(path, repair=True).sound


FILTERS = [(None, True), ({"tokens": None, "layers": None}, False), ({"tokens": [[0, 0]]}, True)]


@pytest.mark.parametrize("filters, harmless", FILTERS)
def test_a_token_that_nobody_left_out_is_missed(
    tmp_path: Path, filters: object, harmless: bool
) -> None:
    with ArchiveWriter(tmp_path / "d", run={"filters": filters}) as sink:
        for step in (0, 1, 3):
            put(sink, key(step=step), np.ones(2))
    found = audit(tmp_path / "d")
    assert [finding.problem for finding in found.findings] == ["token 2 is not there"]
    assert found.sound is harmless


def test_absurd_numbers_cost_nothing(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d", world_size=999_999) as sink:
        put(sink, key(step=10**12), np.ones(2))
        put(sink, key(step=0), np.ones(2))
    part = parts(tmp_path)[0]
    part.rename(part.with_name("part-999999999.h5"))
    told = [finding.problem for finding in audit(tmp_path / "d").findings]
    assert any("1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and more" in problem for problem in told)
