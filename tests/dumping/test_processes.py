"""Programs that start processes, are interrupted deep down, or whose clock jumps."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import dumpcmp
from dumpcmp import audit
from dumpcmp.dumping.capturing import capture

STARTS = """\
import multiprocessing, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def child(queue):
    queue.put(float(nn.Linear(4, 4)(torch.ones(1, 4)).sum()))


def main(how):
    torch.manual_seed(0)
    model, context = nn.Linear(4, 4), multiprocessing.get_context(how)
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    queue.get(timeout=120)
    process.join()
    rows = TensorDataset(torch.arange(8.0).reshape(2, 4))
    for (x,) in DataLoader(rows, num_workers=1, multiprocessing_context=how):
        model(x)


if __name__ == "__main__":
    main(sys.argv[1])
"""
INTERRUPTED = """\
import ctypes, sys, time, torch
from torch import nn

sleeps = {"C": ctypes.CDLL(None).usleep, "C with the GIL": ctypes.PyDLL(None).usleep}
where, x = sys.argv[1], torch.randn(300, 300, requires_grad=True)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.02 if where == "backward" else 0)
        return grad


class Net(nn.Module):
    def forward(self, x):
        if where in sleeps:
            sleeps[where](20_000)
        return Slow.apply(x).relu()


net = Net()
print("begun", flush=True)
while True:
    net(x).sum().backward()
    if where == "C++, backward":
        (x @ x @ x @ x).sum().backward()
"""


@pytest.mark.long
@pytest.mark.parametrize("how", ["spawn", "forkserver"])
def test_processes_that_a_program_starts_are_no_part_of_its_run(how: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STARTS)
    for name, start in (("golden", "fork"), ("target", how)):
        command = [sys.executable, "-m", "dumpcmp", "dump", "--path", name, "program.py", start]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert outcome.exit_code == 0 and len({row.key.step for row in outcome.rows}) == 2


@pytest.mark.long
@pytest.mark.parametrize("where", ["backward", "C", "C with the GIL", "C++, backward"])
def test_an_interrupt_ends_a_dump_wherever_it_comes(where: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(INTERRUPTED)
    command = [sys.executable, "-m", "dumpcmp", "dump", "--backward", "--path", "d"]
    command += ["program.py", where]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe) as program:
        assert program.stdout is not None and program.stdout.readline()
        time.sleep(0.3)
        program.send_signal(signal.SIGINT)
        try:
            _, said = program.communicate(timeout=60)
        finally:
            program.kill()
    assert program.returncode == 2 and b"up to where the program stopped" in said, said
    assert audit(tmp_path / "d").sound and len(dumpcmp.Archive(tmp_path / "d"))


def test_a_clock_that_jumps_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    years, jumps = 365 * 24 * 3600.0, itertools.cycle((10, -10, 0, 60, -30))
    now = time.time
    torch.manual_seed(0)
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    for name in ("golden", "target"):
        with capture(model, tmp_path / name):
            for step in range(5):
                model(x * step)
                (told,) = audit(tmp_path / name).findings
                assert told.problem == "the capture is still running"
        monkeypatch.setattr(time, "time", lambda: now() + years * next(jumps))
    assert audit(tmp_path / "target", repair=True).sound
    assert dumpcmp.compare(tmp_path / "golden", tmp_path / "target").exit_code == 0
