"""Signals and forks in the middle of a capture: nothing hangs, is swallowed or torn."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive

PROGRAM = Path(__file__).parent / "programs" / "interrupted.py"
INTERRUPTS = int(os.environ.get("DUMPCMP_INTERRUPTS", "1"))  # 25 is the long version
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))


@dataclass(frozen=True)
class Lived:
    """What a program lived through in each of its parts, and the archives that it left."""

    folder: Path
    told: dict[str, list[int]]

    def archive(self, what: str) -> Archive:
        """The archive of a part, which is whole."""
        archive = Archive(self.folder / what)
        assert archive.complete and audit(self.folder / what).sound
        return archive


MODES = ("eager", "aten", "fx")
PARTS = ("raises", "calls", "forks", "exits")


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lived]:
    """A program under each mode, whose handlers raise and call modules, and which forks."""
    folder = tmp_path_factory.mktemp("lived")
    command = [sys.executable, str(PROGRAM), str(folder), ",".join(MODES), ",".join(PARTS)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=360)
    assert ran.returncode == 0, ran.stderr
    told = ([int(word) for word in line.split()] for line in ran.stdout.splitlines())
    lived = {mode: Lived(folder / mode, {what: next(told) for what in PARTS}) for mode in MODES}
    assert not list(told)
    return lived


@pytest.fixture(params=MODES)
def lived(request: pytest.FixtureRequest, disturbed: dict[str, Lived]) -> Lived:
    """What the program lived through under one mode."""
    return disturbed[request.param]


def test_exceptions_of_handlers_are_passed_on(lived: Lived) -> None:
    sent, caught, done = lived.told["raises"]
    assert sent == caught >= 5
    assert len(lived.archive("raises").steps("Sequential")) >= done


def test_a_handler_may_call_a_module(lived: Lived) -> None:
    """Each call is recorded: as a step, or inside of the module that the signal came to."""
    (num_calls,), archive = lived.told["calls"], lived.archive("calls")
    inside = [key for key in archive if key.op.endswith("<Linear>") and key.slot == "output.0"]
    assert len(archive.steps("Linear")) + len(inside) == num_calls >= 5


def test_forked_children_neither_hang_nor_write(lived: Lived) -> None:
    num_children, hung = lived.told["forks"]
    assert num_children >= 20 and not hung
    assert lived.archive("forks").steps("Sequential") == tuple(range(num_children))


def test_a_forked_child_may_leave_the_capture(lived: Lived) -> None:
    assert lived.told["exits"] == [3] and lived.archive("exits").steps("Sequential") == (0,)


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
    path, rng = tmp_path / "d", random.Random(SEED + trial)
    command = [sys.executable, "-m", "dumpcmp", "dump", "--path", str(path), str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stdout.readline()
        time.sleep(rng.uniform(0.1, 0.5))
        for _ in range(10):
            program.send_signal(signal.SIGINT)
            time.sleep(rng.uniform(0, 0.05))
        try:
            _, said = program.communicate(timeout=30)
        finally:
            program.kill()  # a shell's background job ignores interrupts, and so would this
    assert program.returncode in (2, -signal.SIGINT), said  # the last may come as Python ends
    assert audit(path, repair=True).exit_code == 0
