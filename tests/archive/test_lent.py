"""Memory lent to a device: it writes into the ring itself, late, and nothing waits or is lost."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.partfile import PartFile
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.read.scan import journal_records
from dumpcmp.archive.schema import CALL
from dumpcmp.archive.write import ring as rings
from dumpcmp.archive.write.part import Octets, Part
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.errors import CaptureWarning
from tests.archive.device import NUM_VALUES, Away, Device, in_lanes
from tests.archive.faulty import failing
from tests.archive.values import Dense, key, loaded, parts, put, record

SIZES = (0, 1, 3_000, 700_000, 5 << 20, 21 << 20)


@pytest.fixture(params=[1, 3], ids=["one lane", "three lanes"])
def num_lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """In how many parts of a step large values go in turn."""
    in_lanes(monkeypatch.setattr, request.param)
    found: int = request.param
    return found


def test_values_of_all_sizes_come_through_with_links_between(
    tmp_path: Path, num_lanes: int
) -> None:
    device = Device()
    values = [np.random.default_rng(n).bytes(SIZES[n % len(SIZES)]) for n in range(18)]
    with ArchiveWriter(tmp_path / "d", part_nbytes=24 << 20) as sink:
        sink.lend_to(device)
        for number, content in enumerate(values):
            bits = np.frombuffer(content, np.uint8)
            name, again = key(f"op{number}"), key(f"op{number}", "input.0")
            sink.put(record(name, bits, order=number), Away(device, bits))
            sink.put(replace(record(again, bits, order=number), same_as=name), None)
    archive = Archive(tmp_path / "d")
    assert len(parts(tmp_path)) > num_lanes and audit(tmp_path / "d").sound
    for number, content in enumerate(values):
        for slot in ("output.0", "input.0"):
            assert loaded(archive, key(f"op{number}", slot)).tobytes() == content
    assert device.lent == [], "no memory is lent any more"


def slowly(part: Part, content: Octets, address: int) -> None:
    time.sleep(0.1 if len(content) > 1 << 20 else 0)
    WRITE(part, content, address)


WRITE = Part.write


def test_a_device_waits_for_no_disk_while_there_is_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Part, "write", slowly)
    monkeypatch.setattr(rings, "LENT_REACH", 8 << 20)
    device, bits = Device(0), np.zeros(6 << 20, np.uint8)
    with ArchiveWriter(tmp_path / "d", ring_nbytes=1 << 20, buffer=128 << 20) as sink:
        sink.lend_to(device)
        for number in range(12):
            sink.put(record(key(f"op{number}"), bits), Away(device, bits))
        assert sink.progress.seconds_waited == 0
        assert len(device.lent) == 2, "it grew, and all of it was lent at once"
    assert len(Archive(tmp_path / "d")) == 12 and audit(tmp_path / "d").sound


def test_a_ring_grows_for_a_device_and_for_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rings, "LENT_NBYTES", 64 << 20)
    device, bits = Device(0), np.zeros(6 << 20, np.uint8)
    with ArchiveWriter(tmp_path / "d", ring_nbytes=1 << 20) as sink:
        sink.lend_to(device)
        put(sink, key("before"), bits, 0)
        assert sink.progress.buffer == 1 << 20 and len(device.lent) == 1
        sink.put(record(key("after"), bits), Away(device, bits))
        assert sink.progress.buffer == 64 << 20 and len(device.lent) > 1
    assert len(Archive(tmp_path / "d")) == 2 and audit(tmp_path / "d").sound


def test_calls_whose_values_lie_in_several_parts_are_told_once_in_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_lanes(monkeypatch.setattr, 2)
    with ArchiveWriter(tmp_path / "d") as sink:
        for number in range(5):
            put(sink, key("op", f"output.{number}"), np.full(100_000, float(number)), number)
            put(sink, key("op", f"input.{number}"), np.full(3, float(number)), number)
    assert len(parts(tmp_path)) == 2 and audit(tmp_path / "d").sound
    archive = Archive(tmp_path / "d")
    assert len(archive) == 10
    for name in archive:
        assert (loaded(archive, name) == float(name.slot[-1])).all()
    for part in parts(tmp_path):
        with PartFile(part) as file:
            assert [found.fields.kind for found in journal_records(file, [])].count(CALL) == 1


def test_a_buffer_bounds_what_memory_holds(tmp_path: Path) -> None:
    device, bits = Device(0), np.zeros(3 << 20, np.uint8)
    with ArchiveWriter(tmp_path / "d", buffer=16 << 20) as sink:
        sink.lend_to(device)
        for number in range(20):
            sink.put(record(key(f"op{number}"), bits), Away(device, bits))
        assert sink.progress.buffer == len(sink._ring.room) == 16 << 20
    assert len(Archive(tmp_path / "d")) == 20


def test_a_part_is_opened_for_what_comes_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_lanes(monkeypatch.setattr, 4)
    with ArchiveWriter(tmp_path / "d") as sink:
        for step in range(2):
            for number in range(step + 1):
                put(sink, key(f"op{number}", step=step), np.full(100_000, 1.0 + step), number)
    assert [part.parent.name for part in parts(tmp_path)] == ["0", "1", "1"]


@pytest.mark.parametrize("num_lanes", ["1", "3"])
def test_what_has_arrived_outlives_a_kill_though_the_disk_took_none(
    tmp_path: Path, num_lanes: str
) -> None:
    path = tmp_path / "d"
    command = [sys.executable, "-m", "tests.archive.device", str(path), num_lanes]
    ran = subprocess.run(command, timeout=60)
    assert ran.returncode == -9
    archive = Archive(path)
    for number in range(NUM_VALUES):
        assert (loaded(archive, key(f"op{number}")) == number).all()
    assert audit(path, repair=True).exit_code == 0
    assert len(Archive(path)) == NUM_VALUES


@pytest.mark.usefixtures("num_lanes")
@pytest.mark.parametrize("at", [3, 6, 8, 11, 15, 20])
def test_a_disk_that_fails_under_several_values_leaves_nothing_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        failing(at, errno.ENOSPC).install(patch)
        with ArchiveWriter(tmp_path / "d") as sink:
            for number in range(6):
                put(sink, key(f"op{number}"), np.full(1_200_000, float(number)), number)
    assert sink.problem
    for repair in (False, True):
        archive = Archive(tmp_path / "d")
        archive.checks_digests = True
        for name in archive:
            assert (loaded(archive, name) == float(name.op.removeprefix("op"))).all()
        audit(tmp_path / "d", repair=repair)


class Clinging(Dense):
    """A Source whose copy keeps the room that it was given, as a closure over it does."""

    def copy_into(self, room: memoryview) -> Arriving:
        return Arriving(self.bits, room)


class Arriving:
    def __init__(self, bits: np.ndarray, room: memoryview) -> None:
        self.bits, self.room, self.part = bits, room, room[:64]

    def __call__(self) -> None:
        self.room[:] = self.bits.data


def test_a_late_copy_too_large_for_the_ring_may_keep_its_room(tmp_path: Path) -> None:
    bits = np.arange(300_000.0)
    with ArchiveWriter(tmp_path / "d", ring_nbytes=1 << 20) as sink:
        sink.put(record(key(), bits), Clinging(bits))
        assert sink.active, sink.problem
    np.testing.assert_array_equal(loaded(Archive(tmp_path / "d"), key()), bits)
    assert audit(tmp_path / "d").sound
