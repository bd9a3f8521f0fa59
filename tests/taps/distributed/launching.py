"""Starts the programs of these tests in real processes, one rank each, with a time limit."""

import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from select import select
from tempfile import NamedTemporaryFile

ROOT = Path(__file__).parents[3]
SECONDS = 420  # for a whole campaign on a busy machine of two cores


def _environment() -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }


def forked(num_ranks: int, *words: str) -> str:
    """Run ``python -m WORDS`` on ranks forked from an interpreter at hand; what they wrote."""
    with NamedTemporaryFile("r", errors="replace") as said:
        status = _answer(json.dumps([num_ranks, words, _environment(), said.name]))
        told = said.read()
    assert status == "0\n", f"{words[0]} ended with {status!r}\n{told[-12000:]}"
    return told


def _answer(line: str) -> str:
    server = _server()
    assert server.stdin and server.stdout
    print(line, file=server.stdin, flush=True)
    if not select([server.stdout], [], [], SECONDS)[0]:
        os.killpg(server.pid, signal.SIGKILL)  # and its ranks
        _server.cache_clear()
        raise TimeoutError(f"no end after {SECONDS} s")
    return server.stdout.readline()


@cache
def _server() -> subprocess.Popen[str]:
    """The interpreter that forks ranks. It ends when it can read no more, as this process ends."""
    command = [sys.executable, "-m", "tests.taps.distributed.forking"]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
