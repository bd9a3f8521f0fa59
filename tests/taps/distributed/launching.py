"""Starts the programs of these tests in real processes, one rank each, with a time limit."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
SECONDS = 420  # for a whole campaign on a busy machine of two cores


def launch(num_ranks: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m WORDS`` on `num_ranks` ranks; alone, without torchrun, where that is 1."""
    ranks = ["torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}", "-m"]
    return _run([*(ranks if num_ranks > 1 else []), *words])


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env=environment,
        timeout=SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )


def launched(num_ranks: int, *words: str) -> None:
    """Run it, and show what it wrote if it fails."""
    _check(launch(num_ranks, *words))


def forked(num_ranks: int, program: str, *words: str) -> None:
    """Run the module `program` on ranks that share one interpreter's imports."""
    _check(_run(["tests.taps.distributed.forking", str(num_ranks), program, *words]))


def _check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
