"""A killed writer loses nothing that was finished 100 ms before, and nothing is ever wrong.

``DUMPCMP_KILLS=100 pytest tests/archive/test_crash.py`` is the long version.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import pytest

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from tests.archive.doomed import filling, name_of

KILLS = int(os.environ.get("DUMPCMP_KILLS", "2"))
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))
PROMISE = 0.1  # seconds


def kill(path: Path, ring: str, after: float) -> tuple[list[tuple[int, int, float]], float]:
    """Run the doomed program for `after` seconds; give what it had finished, and when it died."""
    log = path.with_suffix(".log")
    command = [sys.executable, "-m", "tests.archive.doomed", str(path), str(log), ring]
    with subprocess.Popen(command) as program:
        while not log.exists() or log.stat().st_size < 2_000:
            assert program.poll() is None
            time.sleep(0.01)
        time.sleep(after)
        killed = time.monotonic()
        program.send_signal(signal.SIGKILL)
    lines = [line.split() for line in log.read_text().splitlines(keepends=True) if "\n" in line]
    return [(int(number), int(count), float(when)) for number, count, when in lines], killed


def check(path: Path, finished: list[tuple[int, int, float]], deadline: float) -> int:
    """Assert that what is there is right and that nothing before `deadline` is missing."""
    archive = Archive(path)
    num_found = 0
    for number, count, when in finished:
        for slot in ("output", "input"):
            record = archive.get(name_of(number, slot))
            if record is None:
                assert when > deadline, f"{number} was finished {deadline - when:.3f} s too early"
                continue
            bits = archive.load(record).bits
            assert bits.shape == (count,) and (bits == filling(number)).all()
            num_found += 1
    return num_found


@pytest.mark.parametrize("trial", range(KILLS))
def test_a_kill_loses_nothing_that_was_finished_before(tmp_path: Path, trial: int) -> None:
    path = tmp_path / "d"
    ring = ("shared", "file")[trial % 2]
    finished, killed = kill(path, ring, random.Random(SEED + trial).uniform(0.05, 0.7))
    before = check(path, finished, killed - PROMISE)
    assert not Archive(path).complete and Archive(path).problems
    assert audit(path).exit_code == 1
    mended = audit(path, repair=True)
    assert mended.exit_code == 0, mended.findings
    assert check(path, finished, killed - PROMISE) == before
    again = audit(path, repair=True)
    assert again.exit_code == 0 and again.num_records == mended.num_records >= before
    assert not [finding for finding in again.findings if finding.repair], again.findings
    for part in path.rglob("*.h5"):
        with h5py.File(part) as file:
            file.visititems(lambda name, value: None)
            assert "_index" in file
    assert before == 2 * len(finished), "the ring outlives its process"
