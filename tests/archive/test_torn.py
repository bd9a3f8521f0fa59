"""What a kill tears is in the ring still, and one repair mends all of it."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dumpcmp.archive import locks, paths
from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.partfile import PartFile
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.read.scan import Found, journal_records, read_part, ring_records
from dumpcmp.archive.schema import CALL, FORM, LINK, VALUE
from dumpcmp.archive.write.part import Part
from dumpcmp.archive.write.recovery import recover
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.errors import ArchiveError
from tests.archive.values import key, parts, put

NUM_VALUES = 12


def cut_short(path: Path) -> tuple[Path, Path]:
    """A part as a kill leaves it, and a ring that holds all of its records."""
    with ArchiveWriter(path) as sink:
        for number in range(NUM_VALUES):
            put(sink, key(f"op{number}"), np.full(500, float(number)), number)
        sink.settle()
        time.sleep(0.1)
        whole = parts(path)[0].read_bytes()
    part, ring = parts(path)[0], path / "ring"
    part.write_bytes(whole)
    with PartFile(part) as file:
        kept = [found for found in journal_records(file, [])
                if found.fields.kind in (CALL, FORM, VALUE, LINK)]  # fmt: skip
    kept.sort(key=lambda found: int(found.fields.sequence))
    content = b"".join(whole[found.start : found.end] for found in kept)
    head = paths.RING_HEADER.pack(paths.RING_MAGIC, len(content), 0, kept[0].fields.sequence)
    ring.write_bytes(head.ljust(paths.HEADER_NBYTES, b"\0") + content)
    return part, ring


def tear(part: Path, chance: random.Random) -> None:
    """Take the last bytes of some values, whose prefixes are there, and some records altogether."""
    with PartFile(part) as file:
        values = [f for f in journal_records(file, []) if f.fields.kind == VALUE]
    with part.open("r+b") as room:
        for found in chance.sample(values, 4):
            start = chance.randrange(found.data_start, found.end)
            os.pwrite(room.fileno(), bytes(found.end - start), start)
        for found in chance.sample(values, 2):
            os.pwrite(room.fileno(), bytes(found.end - found.start), found.start)


def assert_whole(root: Path, num_checked: int = NUM_VALUES) -> None:
    archive = Archive(root)
    for number in range(num_checked):
        bits = archive.load(archive[key(f"op{number}")]).bits
        assert (bits == float(number)).all() and bits.shape == (500,)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_torn_in_the_part_is_taken_from_the_ring(seed: int, tmp_path: Path) -> None:
    part, ring = cut_short(tmp_path / "d")
    stranded: list[Found] = list(ring_records(ring))
    assert len([found for found in stranded if found.fields.kind == VALUE]) == NUM_VALUES
    tear(part, random.Random(seed))
    contents = read_part(part, "Model", 0, 0, stranded)
    lie = {contents.name(row)[0]: contents.location(row, 0, 0).part for row in range(NUM_VALUES)}
    assert set(lie.values()) == {ring}, "before it is mended it is read from the ring"
    assert recover(part, stranded, {}) == NUM_VALUES
    ring.unlink()
    assert_whole(tmp_path / "d")
    assert audit(tmp_path / "d").sound


def test_a_record_is_valid_only_once_its_bytes_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between any two writes leaves no record whose bytes are missing."""
    facts = {"schema": 5, "model": "M", "step": 0, "rank": 0, "world_size": 1, "part": 0}
    part = Part(tmp_path / "part-0000.h5", facts)
    told: list[int] = []
    write = Part.write

    def write_and_look(self: Part, content: bytes, address: int) -> None:
        write(self, content, address)
        with PartFile(tmp_path / "part-0000.h5") as file:
            for found in journal_records(file, []):
                if found.fields.kind == VALUE:
                    lies = file.read(found.data_start, found.fields.nbytes)
                    assert lies == bytes(range(200)), "the prefix was there before the bytes"
                    told.append(found.start)

    monkeypatch.setattr(Part, "write", write_and_look)
    from dumpcmp.archive.schema import Form
    from dumpcmp.archive.write.objects import Template

    template = Template(Form("output.0", "uint8", (200,), (1,)))
    number = part.append_form(template)
    part.append_value((0, template, number, 0), memoryview(bytes(range(200))))
    part.close()
    assert told


def left(path: Path, *, is_killed: bool) -> Path:
    with ArchiveWriter(path) as sink:
        put(sink, key("a"), np.ones(3))
    run = next(path.glob("*/run.json"))
    if is_killed:
        run.write_text(json.dumps(json.loads(run.read_text()) | {"ended": None, "complete": False}))
    return path


def test_the_compactor_of_a_killed_dump_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It outlives the dump by its last round: a repair ended in an error, and a second did it."""
    path, waits = left(tmp_path / "d", is_killed=True), list[float]()
    held = locks.hold(path / locks.COMPACTING)

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            os.close(held)

    monkeypatch.setattr(locks, "time", SimpleNamespace(sleep=wait, monotonic=time.monotonic))
    assert audit(path, repair=True).exit_code == 0 and len(waits) == 3


def test_who_compacts_a_run_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    path = left(tmp_path / "d", is_killed=False)
    held = locks.hold(path / locks.COMPACTING)
    with pytest.raises(ArchiveError, match="is being compacted or repaired"):
        audit(path, repair=True)
    os.close(held)


def test_drafts_in_drafts_are_cleared_by_one_repair(tmp_path: Path) -> None:
    """A step that was prepared has a draft of a part in a directory that is a draft itself."""
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, key("a"), np.ones(3))
    step = parts(tmp_path / "d")[0].parent
    for room in (step.parent / ".new-7", step / ".draft-x" / ".new-y"):
        room.mkdir(parents=True)
        (room / ".new-part-0000.h5").write_bytes(b"x")
    first = audit(tmp_path / "d", repair=True)
    assert first.exit_code == 0 and len(first.findings) == 2
    again = audit(tmp_path / "d", repair=True)
    assert again.exit_code == 0 and not again.findings
