"""Runs the parts of an op on real ranks: processes that talk over gloo or NCCL.

Ranks stay alive from trial to trial. A rank that raises, dies or does not answer ends its crew,
and its traceback is reported; the next trial starts a new crew. All crews are forked from one
interpreter. What it and a rank do is in `rank.py`.
"""

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import IO, Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from dumpcmp.partitioning.configuration import PartitionError
from dumpcmp.partitioning.parts import (
    Done,
    InProcess,
    Joined,
    LeafTensors,
    PartFailedError,
    Runner,
    Trial,
    collected,
)
from dumpcmp.partitioning.rank import START

BACKENDS = ("inprocess", "gloo", "nccl")


class RankError(PartFailedError):
    """A rank raised an error, died, or did not answer in time."""


@contextmanager
def opened(backend: str, timeout: float = 300.0) -> Iterator[Runner]:
    """A backend by its name. Ranks start when they are first needed, and end with the block."""
    if backend not in BACKENDS:
        raise PartitionError(
            f"there is no backend {backend!r}", hint=f"choose one of {', '.join(BACKENDS)}"
        )
    if backend == "inprocess":
        yield InProcess()
        return
    ranks = Ranks(backend, timeout)
    try:
        yield ranks
    finally:
        ranks.close()


# Ranks find modules where their parent does, in the same order: PYTHONPATH would put the user's
# files before the standard library.
_MAIN = "import sys; sys.path[:] = {path!r}; from dumpcmp.partitioning.rank import main; main()"


@dataclass(frozen=True)
class Recruiter:
    """An interpreter that has imported torch, which takes seconds, and forks ranks.

    It is a fresh one, so that the user's main module is not run again, and none of its threads.
    """

    process: "subprocess.Popen[bytes]"
    line: Connection
    errors: IO[bytes]

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def recruit(self, *words: Any) -> "Rank":
        """A new rank, told `words`."""
        with ExitStack() as undo:
            mine, theirs = multiprocessing.Pipe()
            undo.callback(mine.close)
            errors = undo.enter_context(tempfile.TemporaryFile())
            with theirs:
                pid = self._ask(words, theirs.fileno(), errors.fileno())
            undo.pop_all()
        return Rank(self, pid, mine, errors)

    def exit_code(self, pid: int, seconds: float) -> int | None:
        """How the rank with this `pid` ended; None if it did not within `seconds`."""
        code: int | None = self._ask((pid, seconds))
        return code

    def _ask(self, words: tuple[Any, ...], *descriptors: int) -> Any:
        try:
            self.line.send(words)
            for descriptor in descriptors:
                send_handle(self.line, descriptor, self.process.pid)
            if self.line.poll(START):
                return self.line.recv()
        except (EOFError, OSError):
            code = self.process.wait()
            told = f"died with exit code {code}: {_last_words(self.errors)}"
            raise RankError(f"the ranks' interpreter {told}") from None
        self.process.kill()
        raise RankError(f"the ranks' interpreter did not answer within {START:.0f} s")

    def end(self) -> None:
        self.line.close()
        self.process.wait()
        self.errors.close()


def _recruiter() -> Recruiter:
    mine, theirs = multiprocessing.Pipe()
    errors = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN.format(path=sys.path), str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )
    theirs.close()
    return Recruiter(process, mine, errors)


@dataclass(frozen=True)
class Rank:
    """A process of the crew, the line to it, and what it writes to stderr."""

    recruiter: Recruiter
    pid: int
    line: Connection
    errors: IO[bytes]

    def exit_code(self, seconds: float) -> int | None:
        """How the process ended; None if it did not within `seconds`."""
        return self.recruiter.exit_code(self.pid, seconds)

    def end(self) -> None:
        """Stop the process, at once if it does not listen."""
        self.line.close()
        if self.recruiter.is_alive and self.exit_code(2.0) is None:
            os.kill(self.pid, signal.SIGKILL)
            self.exit_code(math.inf)
        self.errors.close()


def _last_words(errors: IO[bytes]) -> str:
    """The end of what was written to `errors`."""
    errors.seek(0)
    return errors.read().decode(errors="replace").strip()[-2000:] or "no last words"


@dataclass(frozen=True)
class Crew:
    """Ranks that form one world, and the store where they meet."""

    ranks: tuple[Rank, ...]
    store: TCPStore

    def end(self) -> None:
        for rank in self.ranks:
            rank.line.close()
        for rank in self.ranks:
            rank.end()


class Ranks:
    """Crews of ranks, one for each number of parts that was asked for."""

    def __init__(self, backend: str, timeout: float) -> None:
        self.backend = backend
        self.timeout = timeout
        self._crews: dict[int, Crew] = {}
        self._recruiter: Recruiter | None = None

    def observe(self, trial: Trial, inputs: LeafTensors) -> Joined:  # noqa: ARG002
        """Run `trial` on as many ranks as it has parts."""
        num = trial.partition.num
        if num not in self._crews:
            self._start(num)
        with tempfile.TemporaryDirectory(prefix="ranks-") as room:
            for rank in self._crews[num].ranks:
                rank.line.send((trial, room))
            self._hear(num, self.timeout)
            files = (Path(room, f"{rank}.pt") for rank in range(num))
            return collected([Done(*torch.load(file, weights_only=True)) for file in files])

    def _start(self, num: int) -> None:
        if self.backend == "nccl" and torch.cuda.device_count() < num:
            raise PartitionError(
                f"{num} NCCL ranks need {num} GPUs, and there are {torch.cuda.device_count()}",
                hint="use backend='gloo', or fewer parts",
            )
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        if self._recruiter is not None and not self._recruiter.is_alive:
            self._recruiter.end()
            self._recruiter = None
        self._recruiter = self._recruiter or _recruiter()
        words = (num, self.backend, store.port, self.timeout)
        with ExitStack() as undo:
            ranks = []
            for number in range(num):
                ranks.append(self._recruiter.recruit(number, *words))
                undo.callback(ranks[-1].end)
            undo.pop_all()
        self._crews[num] = Crew(tuple(ranks), store)
        self._hear(num, START)

    def _hear(self, num: int, timeout: float) -> None:
        """Wait until every rank is done; a crew with one that fails is ended."""
        try:
            _gather(self._crews[num], timeout)
        except RankError:
            self._crews.pop(num).end()
            raise

    def close(self) -> None:
        while self._crews:
            self._crews.popitem()[1].end()
        if self._recruiter is not None:
            self._recruiter.end()
            self._recruiter = None


def _gather(crew: Crew, timeout: float) -> None:
    """Wait until every rank has said that it is done, or find out why one is not."""
    waiting = dict(enumerate(crew.ranks))
    deadline = time.monotonic() + timeout
    while waiting:
        left = max(0.0, deadline - time.monotonic())
        ready = wait([rank.line for rank in waiting.values()], left)
        if not ready:
            raise RankError(f"rank {min(waiting)} did not answer within {timeout:g} s")
        for number, rank in list(waiting.items()):
            if rank.line in ready:
                _hear(number, rank)
                del waiting[number]


def _hear(number: int, rank: Rank) -> None:
    try:
        trouble = rank.line.recv()
    except EOFError:
        code = rank.exit_code(5.0)
        raise RankError(
            f"rank {number} died with exit code {code}: {_last_words(rank.errors)}"
        ) from None
    if trouble:
        raise RankError(f"rank {number} raises {trouble}")
