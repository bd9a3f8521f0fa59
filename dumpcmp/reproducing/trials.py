"""Runs repros in processes of their own, forked from one that has imported torch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.reproducing.case import ReproCase
from dumpcmp.reproducing.script import script_of, stored_values
from dumpcmp.reproducing.tensor_file import write_tensors

SECONDS = 240  # that a repro may take
_FAILS = 1  # exit status of a script whose assertion failed
_BROKEN = 2  # of one that ended in another way
_SERVER = """
import json, os, runpy, signal, sys, traceback
import numpy, torch
for line in sys.stdin:
    job = json.loads(line)
    if job["optimizes"]:
        import torch._dynamo
    children = []
    for rank in range(job["ranks"]):
        child = os.fork()
        if child:
            children.append(child)
            continue
        if job["ranks"] > 1:
            os.environ.update(job["env"], RANK=str(rank))
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        signal.alarm(job["seconds"])
        sys.argv, status = job["argv"], 0
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except AssertionError:
            status = 1
            traceback.print_exc()
        except BaseException:
            status = 2
            traceback.print_exc()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(max(ends, key=abs), flush=True)
"""


@dataclass(slots=True)
class Trials:
    """A process that runs scripts, each in a fork of its own, and a room for them."""

    server: subprocess.Popen[str]
    room: Path
    num_run: int = 0

    def status(self, folder: Path, *arguments: str, forked: bool = True, num_ranks: int = 1) -> int:
        """How ``repro.py`` of `folder` ends: 0, 1 where its assertion fails, or another number.

        A compiler starts threads and processes: what compiles gets a process that is not `forked`.
        """
        self.num_run += 1
        argv = [str(folder / "repro.py"), *arguments]
        return self._forked(argv, num_ranks) if forked else self._alone(argv)

    def _forked(self, argv: Sequence[str], num_ranks: int) -> int:
        optimizes = (
            "torch.optim." in Path(argv[0]).read_text()
        )  # which imports much: once is enough
        log = self.room / "log"
        log.unlink(missing_ok=True)
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        env["WORLD_SIZE"] = str(num_ranks)
        job = {
            "argv": argv, "log": str(log), "seconds": SECONDS, "optimizes": optimizes,
            "ranks": num_ranks, "env": env,
        }  # fmt: skip
        assert self.server.stdin is not None and self.server.stdout is not None
        try:
            self.server.stdin.write(json.dumps(job) + "\n")
            self.server.stdin.flush()
            return int(self.server.stdout.readline())
        except (OSError, ValueError):
            raise DumpcmpError(
                "the process that tries repros has ended",
                hint="`python -c 'import torch, numpy'` should work where this command runs",
            ) from None

    def _alone(self, argv: Sequence[str]) -> int:
        with (self.room / "log").open("w") as log:
            try:
                done = subprocess.run(
                    [sys.executable, *argv], stdout=log, stderr=log, timeout=SECONDS, check=False
                )
            except subprocess.TimeoutExpired:
                return _BROKEN
        is_assertion = "AssertionError" in self.log
        return done.returncode if not done.returncode or is_assertion else _BROKEN

    @property
    def log(self) -> str:
        """What the last script printed."""
        return (self.room / "log").read_text(errors="replace")

    def shows(self, case: ReproCase) -> bool:
        """Whether the script fails as it stands, and passes with the right op in place."""
        folder = self.written(case)
        plain, right = not case.compiles, "compile(" not in case.right
        return (
            self.status(folder, forked=plain, num_ranks=case.num_ranks) == _FAILS
            and self.status(folder, "--right", forked=right, num_ranks=case.num_ranks) == 0
        )

    def written(self, case: ReproCase) -> Path:
        """The script and its values, in a folder."""
        folder = self.room / "repro"
        folder.mkdir(exist_ok=True)
        write_tensors(folder / "values.safetensors", stored_values(case))
        (folder / "repro.py").write_text(script_of(case))
        return folder

    def with_right_op(self, case: ReproCase) -> ReproCase | None:
        """`case` with the first right op that passes where the code as it stands fails."""
        num_ranks = case.num_ranks
        ended = self.status(self.written(case), forked=not case.compiles, num_ranks=num_ranks)
        if ended != _FAILS:
            return None
        for right in case.rights:
            tried = replace(case, right=right)
            if tried.right == tried.wrong:
                continue
            if not self.status(self.written(tried), "--right", num_ranks=num_ranks):
                return tried
        return None


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def trying() -> Iterator[Trials]:
    """Trials, while the block runs."""
    env = {word: text for word, text in os.environ.items() if word != "PYTHONPATH"}
    env |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory() as room:
        server = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=room,
        )  # fmt: skip
        try:
            yield Trials(server, Path(room))
        finally:
            assert server.stdin is not None
            server.stdin.close()
            server.wait()
