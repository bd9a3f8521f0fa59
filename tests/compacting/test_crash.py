"""The law of crashes: a compactor killed at any moment loses nothing."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import dumpcmp
from dumpcmp import audit, compact
from dumpcmp.dumping.capturing import capture
from tests.compacting.crash import trials

COUNT = int(os.environ.get("DUMPCMP_CRASH_TRIALS", "3"))
KILLS = int(os.environ.get("DUMPCMP_KILLS", "4"))
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))


def test_a_killed_compactor_leaves_every_part_full_or_compacted(tmp_path: Path) -> None:
    tried, wrong = trials(tmp_path, COUNT)
    assert tried >= COUNT
    assert wrong == 0


@pytest.mark.long
def test_compactors_that_watch_a_capture_and_are_killed_leave_it_whole(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 32), nn.Tanh()), torch.randn(8, 32)
    chance = random.Random(SEED)
    num_steps = 0
    with capture(model, tmp_path / "d"):
        for _ in range(KILLS):
            watching = _begin_to_watch(tmp_path / "d")
            ends = time.monotonic() + chance.uniform(0, 0.5)
            while time.monotonic() < ends:
                model(x + num_steps)
                num_steps += 1
                time.sleep(0.005)
            os.kill(watching, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(watching, 0)[1]) in (-signal.SIGKILL, 0)
    with capture(model, tmp_path / "golden"):
        for step in range(num_steps):
            model(x + step)
    assert not compact(tmp_path / "d").problems  # which finds none in its way, and clears up
    assert audit(tmp_path / "d").sound and not list(tmp_path.rglob("*draft*"))
    assert dumpcmp.compare(tmp_path / "golden", tmp_path / "d").exit_code == 0


def _begin_to_watch(path: Path) -> int:
    """The process of a compactor that watches `path`."""
    child = os.fork()
    if child == 0:
        try:
            compact(path, watch=True)
        finally:
            os._exit(0)
    return child
