"""A dump whose process may take little more memory than the program alone: whole, or told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dumpcmp
from dumpcmp import audit

PROGRAM = """\
import resource, sys
import torch
from torch import nn

model, x = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))), torch.ones(256, 512)
torch.manual_seed(0)
more = int(sys.argv[1]) << 20


def room():
    with open("/proc/self/statm") as told:
        return int(told.read().split()[0]) * resource.getpagesize()


if more:
    resource.setrlimit(resource.RLIMIT_AS, (room() + more, resource.RLIM_INFINITY))
with torch.no_grad():
    for parameter in model.parameters():
        parameter.fill_(2**-9)  # sums are exact, whichever kernel has room
    for step in range(6):
        model(x + step)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("whole")
    assert dumped(room, 0).returncode == 0
    return room / "d"


def dumped(room: Path, megabytes: int) -> subprocess.CompletedProcess[str]:
    (room / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "dumpcmp", "dump", "--path", str(room / "d")]
    command += [str(room / "program.py"), str(megabytes)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    "megabytes", [600, pytest.param(150, marks=pytest.mark.long), 60, 20, 5, 1]
)
def test_a_dump_with_little_memory_is_whole_or_says_that_it_is_not(
    whole: Path, tmp_path: Path, megabytes: int
) -> None:
    done = dumped(tmp_path, megabytes)
    if done.returncode == 0:
        assert dumpcmp.compare(whole, tmp_path / "d").exit_code == 0
        return
    assert "memory" in done.stderr and "dumpcmp: " in done.stderr
    assert "unexpected" not in done.stderr and "Exception in thread" not in done.stderr
    assert audit(tmp_path / "d", repair=True).sound
    golden, mine = dumpcmp.Archive(whole), dumpcmp.Archive(tmp_path / "d")
    for key in mine:
        assert torch.equal(mine.tensor(key), golden.tensor(key)), key
