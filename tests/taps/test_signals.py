"""Signals and forks in the middle of a capture: nothing hangs, is swallowed or torn."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive

PROGRAM = Path(__file__).parent / "programs" / "interrupted.py"
MODES = ["eager", "aten", "fx"]
INTERRUPTS = int(os.environ.get("DUMPCMP_INTERRUPTS", "2"))  # 25 is the long version


def disturbed(path: Path, mode: str, what: str) -> list[int]:
    """Run the program; the three numbers that it prints."""
    command = [sys.executable, str(PROGRAM), str(path), mode, what]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stderr
    return [int(word) for word in ran.stdout.split()]


@pytest.mark.parametrize("mode", MODES)
def test_exceptions_of_handlers_are_passed_on(mode: str, tmp_path: Path) -> None:
    sent, caught, done = disturbed(tmp_path / "d", mode, "raises")
    assert sent == caught >= 5
    archive = Archive(tmp_path / "d")
    assert archive.complete and audit(tmp_path / "d").sound
    assert len(archive.steps("Sequential")) >= done


@pytest.mark.parametrize("mode", MODES)
def test_a_handler_may_call_a_module(mode: str, tmp_path: Path) -> None:
    num_calls, *_ = disturbed(tmp_path / "d", mode, "calls")
    assert num_calls >= 5
    assert Archive(tmp_path / "d").complete and audit(tmp_path / "d").sound


@pytest.mark.parametrize("mode", MODES)
def test_forked_children_neither_hang_nor_write(mode: str, tmp_path: Path) -> None:
    num_children, hung, _ = disturbed(tmp_path / "d", mode, "forks")
    assert (num_children, hung) == (60, 0)
    archive = Archive(tmp_path / "d")
    assert archive.steps("Sequential") == tuple(range(60)) and audit(tmp_path / "d").sound


def test_a_forked_child_may_leave_the_capture(tmp_path: Path) -> None:
    assert disturbed(tmp_path / "d", "eager", "exits") == [3, 0, 0]
    assert Archive(tmp_path / "d").complete and audit(tmp_path / "d").sound


@pytest.mark.parametrize("trial", range(INTERRUPTS))
def test_repeated_interrupts_end_a_dump(trial: int, tmp_path: Path) -> None:
    script = tmp_path / "busy.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(50)))\n"
        "print('begun', flush=True)\n"
        "while True:\n"
        "    model(torch.ones(8, 64))\n"
    )
    path, rng = tmp_path / "d", random.Random(trial)
    command = [sys.executable, "-m", "dumpcmp", "dump", "--path", str(path), str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stdout.readline()
        time.sleep(rng.uniform(0.1, 0.5))
        for _ in range(10):
            program.send_signal(signal.SIGINT)
            time.sleep(rng.uniform(0, 0.05))
        _, said = program.communicate(timeout=30)
    assert program.returncode in (2, -signal.SIGINT), said  # the last may come as Python ends
    assert audit(path, repair=True).exit_code == 0
