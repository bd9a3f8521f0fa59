"""Run commands in forks of a process that has imported torch, so that time does not go to imports.

A command is what stands behind ``python -m``. Each runs in a process of its own, with its own
environment and files for stdout and stderr; with several ranks there is one process a rank and
the environment that torchrun gives.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

TIMEOUT = int(os.environ.get("PUBLICBUGS_TIMEOUT", "240"))


@dataclass(frozen=True)
class Ran:
    """How a command ended: the worst exit status of its ranks, what it printed, and its time."""

    status: int
    stdout: str
    stderr: str
    seconds: float


def warm() -> None:
    """Import what most commands need; nothing is computed, so no threads are there to be lost."""
    for name in ("torch._dynamo", "torch._inductor.compile_fx", "dumpcmp.cli"):
        import_module(name)


def run(
    command: Sequence[str], room: Path, ranks: int = 1, env: Mapping[str, str] | None = None
) -> Ran:
    start = time.perf_counter()
    port = str(_free_port())
    pids = []
    for rank in range(ranks):
        files = [room / f"{word}.{rank}" for word in ("stdout", "stderr")]
        more = dict(env or {})
        if ranks > 1:
            more |= _torchrun(rank, ranks, port)
        pid = os.fork()
        if not pid:
            _become(command, files, more)
        pids.append(pid)
    status = _wait(pids, start + TIMEOUT)
    texts = [
        "".join((room / f"{word}.{rank}").read_text(errors="replace") for rank in range(ranks))
        for word in ("stdout", "stderr")
    ]
    return Ran(status, texts[0], texts[1], time.perf_counter() - start)


def _become(command: Sequence[str], files: Sequence[Path], env: Mapping[str, str]) -> None:
    """In the child: be that command, and end with its exit status."""
    status = 1
    try:
        os.setpgid(0, 0)
        for number, path in enumerate(files, 1):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, number)
        os.environ.update(env)
        sys.argv = list(command)
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status & 255)


def _wait(pids: Sequence[int], deadline: float) -> int:
    left, worst = set(pids), 0
    while left:
        for pid in tuple(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                left.discard(pid)
                code = os.waitstatus_to_exitcode(status)
                worst = max(worst, code if code >= 0 else 128 - code)
        if left and time.perf_counter() > deadline:
            for pid in left:
                os.killpg(pid, signal.SIGKILL)
            worst, deadline = 124, float("inf")
        time.sleep(0.01)
    return worst


def _torchrun(rank: int, ranks: int, port: str) -> dict[str, str]:
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
    size = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "GROUP_WORLD_SIZE": "1"}
    return {**place, **size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
