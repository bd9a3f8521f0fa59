"""Whatever the system refuses, and whenever: the program goes on, and nothing is ever wrong."""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
import warnings
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.errors import ArchiveError, CaptureWarning, DumpcmpError
from tests.archive.faulty import Disk, System, failing
from tests.archive.values import key, parts, put

TRIALS = int(os.environ.get("DUMPCMP_FAULTS", "60"))  # 3000 is the long version
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))
ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EMFILE", "ENOMEM", "EINTR")
NUM_VALUES = 40


MIXED, SMALL = (3, 500, 9_000, 200_000), (3, 9)  # elements; parts of small ones are laid densely


def write(path: Path, sizes: tuple[int, ...]) -> ArchiveWriter:
    with ArchiveWriter(path, part_nbytes=60_000, ring_nbytes=1 << 20) as sink:
        for number in range(NUM_VALUES):
            size = sizes[number % len(sizes)]
            put(sink, key(f"op{number}"), np.full(size, float(number)), number)
    return sink


def check(path: Path) -> int:
    """Assert that what can be read is right; how many values that are."""
    found, archive = 0, Archive(path)
    archive.checks_digests = True
    for name in archive:
        try:
            value = archive.load(archive[name])
        except DumpcmpError:
            continue
        assert (value.bits == float(name.op.removeprefix("op"))).all(), name
        found += 1
    return found


@pytest.mark.parametrize("error", ERRORS)
def test_a_fault_anywhere_stops_the_capture_alone(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = random.Random(f"{error} {SEED}")
    for trial in range(TRIALS // len(ERRORS)):
        path = tmp_path / f"d{trial}"
        sizes = (MIXED, SMALL)[trial % 2]
        most = 160 if sizes == MIXED else 24  # calls that there are
        system = failing(draws.randrange(most), getattr(errno, error))
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", CaptureWarning)
            system.install(patch)
            try:
                sink = write(path, sizes)
            except ArchiveError:  # it could not even begin, and says so
                continue
        found = check(path)
        assert found == NUM_VALUES or sink.problem, "nothing is lost without a word"
        assert Archive(path).complete == (not sink.problem)
        audit(path, repair=True)
        assert check(path) >= found
        shutil.rmtree(path)


@pytest.mark.parametrize("sizes", [MIXED, SMALL])
def test_a_disk_that_stalls_loses_nothing(
    sizes: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = random.Random(SEED + 1)

    def stall(_: str, __: tuple[object, ...]) -> None:
        if draws.random() < 0.1:
            time.sleep(draws.choice((0.002, 0.02, 0.08)))

    for trial in range(max(1, TRIALS // 60)):
        with monkeypatch.context() as patch:
            System(stall).install(patch)
            sink = write(tmp_path / f"d{trial}", sizes)
        assert not sink.problem and check(tmp_path / f"d{trial}") == NUM_VALUES


@pytest.mark.parametrize("sizes", [MIXED, SMALL])
def test_power_lost_at_any_time_leaves_nothing_wrong(
    sizes: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any prefix of the writes to a part, and any choice of them: the system orders nothing."""
    disk = Disk()
    with monkeypatch.context() as patch:
        System(disk.before).install(patch)
        write(tmp_path / "d", sizes)
    draws = random.Random(SEED)
    whole = {part: part.read_bytes() for part in parts(tmp_path / "d")}
    for trial in range(TRIALS // 4):
        for part in whole:
            own = [each for each in disk.writes if each[0] == part.stat().st_ino]
            some = own[: draws.randrange(3, len(own) + 1)]
            if trial % 2:
                some = some[:3] + [each for each in some[3:] if draws.random() < 0.9]
            with part.open("r+b") as file:
                file.truncate(0)
                file.write(disk.content(some))
        for repair in (False, True):
            audit(tmp_path / "d", repair=repair)
            with nullcontext() if sizes == MIXED else suppress(ArchiveError):  # not at all
                check(tmp_path / "d")
        for part, content in whole.items():
            with part.open("r+b") as file:
                file.truncate(0)
                file.write(content)
