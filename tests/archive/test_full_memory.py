"""Shared memory that is full never ends the program: what the ring uses was reserved before."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from tests.archive.values import key, loaded

SMALL = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = "mount -t tmpfs -o size={} none /dev/shm && exec "


def can_mount() -> bool:
    probe = [*SMALL, MOUNT.format("1m") + "true"]
    return (
        bool(shutil.which("unshare")) and not subprocess.run(probe, capture_output=True).returncode
    )


@pytest.mark.each_value_once
@pytest.mark.skipif(not can_mount(), reason="no right to mount a file system of one's own")
@pytest.mark.parametrize("size", ["12m", "64k"])
@pytest.mark.parametrize("when", ["early", "late"])
def test_a_full_shared_memory_loses_nothing(tmp_path: Path, size: str, when: str) -> None:
    program = f'{sys.executable} -m tests.archive.crowded "$@"'
    command = [*SMALL, MOUNT.format(size) + program, "-", str(tmp_path / "d"), when]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    archive = Archive(tmp_path / "d")
    assert archive.complete and len(archive) == 200
    for number in range(200):
        np.testing.assert_array_equal(loaded(archive, key(f"op{number}")), float(number))
    assert audit(tmp_path / "d").exit_code == 0
