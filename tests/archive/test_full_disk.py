"""A disk that is full stops the capture with one warning, and keeps all that was written."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from tests.archive.values import key, loaded

LIMIT = 4 << 20
RECORD = 8 << 10  # bytes of a tensor; its record takes a little more


def test_a_full_disk_stops_the_capture_and_not_the_program(tmp_path: Path) -> None:
    path = tmp_path / "d"
    command = [sys.executable, "-m", "tests.archive.limited", str(path), str(LIMIT), "always"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    put, num_warnings, message = ran.stdout.split(maxsplit=2)
    assert num_warnings == "1" and "File too large" in message and int(put) < 10_000
    archive = Archive(path)
    assert not archive.complete and "File too large" in archive.problems[0]
    found = [number for number in range(int(put)) if key(f"op{number}") in archive]
    assert found == list(range(len(found))), "all records before the last are there"
    assert len(found) > 0.8 * LIMIT / (RECORD + 1024)
    for number in found:
        np.testing.assert_array_equal(loaded(archive, key(f"op{number}")), float(number))
    assert audit(path, repair=True).exit_code == 0
    assert {key(f"op{number}") for number in found} == set(Archive(path))


def test_warnings_that_are_errors_stop_the_program_no_more_than_others(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.archive.limited", str(tmp_path / "d"), str(LIMIT)]
    ran = subprocess.run([*command, "error"], capture_output=True, text=True, check=True)
    assert ran.stderr.count("the program goes on: OSError") == 1
    assert Archive(tmp_path / "d").problems
