"""A disk that fails, or gives less than it is asked for, while a run is read: its place is told."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import dumpcmp
from dumpcmp import audit
from dumpcmp.archive.read.mapped_files import MappedFile, unreadable
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns import files
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.row import Verdict
from tests.archive.values import key, parts, put

OPS = tuple(f"op{number}" for number in range(5))
NUMBERS = 3_000
Read = Callable[[int, int, int], bytes]


def written(path: Path, change: float = 0.0) -> Path:
    with ArchiveWriter(path) as sink:
        for order, name in enumerate(OPS):
            sink.call(Call("Model", 0, Op(name), 0, order, "torch.f", "m.py:1"))
            put(sink, key(name), np.arange(NUMBERS) + order + change, order)
    return path


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return written(tmp_path / "golden"), written(tmp_path / "target")


class Disk:
    """Stands in for os.pread: counts the reads, and does with them what `answer` says."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.num_reads = 0
        self.answer: Callable[[int], str] = lambda number: "whole"
        self._pread: Read = os.pread
        patch.setattr(files.os, "pread", self.pread)  # type: ignore[attr-defined]

    def pread(self, descriptor: int, nbytes: int, place: int) -> bytes:
        self.num_reads += 1
        answer = self.answer(self.num_reads - 1)
        if answer == "fails":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._pread(descriptor, -(-nbytes // 2) if answer == "short" else nbytes, place)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_short_reads_change_nothing(disk: Disk, runs: tuple[Path, Path]) -> None:
    disk.answer = lambda number: "short"
    assert dumpcmp.compare(*runs).exit_code == 0
    assert all(audit(path).sound for path in runs)


def test_a_read_that_fails_is_told_with_its_file_and_never_a_difference(
    disk: Disk, runs: tuple[Path, Path]
) -> None:
    dumpcmp.compare(*runs, replay="off")
    told = [_told(disk, at, *runs) for at in range(0, disk.num_reads, 4)]
    assert any("Input/output error" in said and ".h5" in said for said in told)


def _told(disk: Disk, at: int, golden: Path, target: Path) -> str:
    """What a comparison says of which one read fails; it may have read the same in another way."""
    began = disk.num_reads
    disk.answer = lambda number: "fails" if number == began + at else "whole"
    try:
        outcome = dumpcmp.compare(golden, target, replay="off")
    except ArchiveError as error:
        return error.message
    assert outcome.exit_code in (0, 2)
    assert {row.key.op for row in outcome.rows if row.verdict is Verdict.PASS} == set(OPS)
    return outcome.headline


def test_a_disk_that_is_gone_is_one_sentence(disk: Disk, runs: tuple[Path, Path]) -> None:
    disk.answer = lambda number: "fails"
    with pytest.raises(ArchiveError, match=r"cannot read .* of .*\.h5: Input/output error"):
        dumpcmp.compare(*runs)
    assert not audit(runs[0]).sound


def test_one_value_that_the_disk_does_not_give_is_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden, target = written(tmp_path / "golden"), written(tmp_path / "target", change=1.0)
    (record,) = (r for r in Archive(target).values() if r.key.op == OPS[2])
    assert record.location is not None
    lost, view = record.location, MappedFile.view

    def read(mapped: MappedFile, start: int, nbytes: int) -> NDArray[np.uint8]:
        if (mapped._part, start) == (lost.part, lost.offset):
            raise unreadable(lost.part, start, nbytes, "")
        return view(mapped, start, nbytes)

    monkeypatch.setattr(MappedFile, "view", read)
    outcome = dumpcmp.compare(golden, target, replay="off")
    verdicts = {str(row.key.op): row.verdict for row in outcome.rows}
    assert verdicts.pop(OPS[2]) is Verdict.ERROR and len(verdicts) == len(OPS) - 1
    assert all(verdict is Verdict.FAIL for verdict in verdicts.values())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems end the process by a signal")
def test_a_file_that_is_cut_short_while_it_is_read_ends_no_process(tmp_path: Path) -> None:
    path = written(tmp_path / "d")
    child = os.fork()
    if child == 0:
        os._exit(_read_of_a_file_that_is_cut(path))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def _read_of_a_file_that_is_cut(path: Path) -> int:
    archive = Archive(path)
    first, *_, last = list(archive.values())
    archive.load(first)  # which maps the part
    os.truncate(parts(path)[0], 4096)
    try:
        archive.load(last)
    except ArchiveError as error:
        return 3 if "cut short" in error.message else 4
    return 5
