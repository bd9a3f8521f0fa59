"""Computes the user's own metrics in a process of their own: one that hangs is ended there."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumpcmp.nouns.budgets import METRIC
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.options import load
from dumpcmp.nouns.own_numbers import named

IDLE_SECONDS = 60.0  # so long the process waits for a question before it ends
GRACE_SECONDS = 5.0  # so much later it ends itself, where nobody is there who would end it
_LOOK_SECONDS = 0.2  # between two looks at what it has computed
_CLOCK = 10  # times as long as it may compute it may take by the clock: others may keep it waiting
_PROGRAM = "import sys; from dumpcmp.measure.metric_process import serve; serve(int(sys.argv[1]))"
_FAREWELL = b""  # the last word of a process that was asked nothing for too long


class MetricProcess:
    """A process that computes metrics, of one pair after another.

    It is started when it is asked. A metric that does not answer in time, or ends its process, is
    asked no more.
    """

    def __init__(self) -> None:
        self._given_up: dict[str, str] = {}  # metrics, and why they are asked no more
        self._lock = threading.Lock()
        self._end: weakref.finalize[..., Any] | None = None

    def check(self, name: str) -> None:
        """Raise SelectionError where there is no metric called `name`."""
        answer = self._asked(name, [])
        if answer.get("problem"):
            raise SelectionError(answer["problem"], hint=answer.get("hint", ""))

    def computed(
        self, name: str, golden: NDArray[Any], target: NDArray[Any]
    ) -> tuple[dict[str, float], str]:
        """The numbers of a pair by column, and why there are none."""
        answer = self._asked(name, [golden, target])
        return answer.get("numbers", {}), answer.get("problem", "")

    def _asked(self, name: str, arrays: Sequence[NDArray[Any]]) -> dict[str, Any]:
        with self._lock:
            if name not in self._given_up:
                try:
                    return self._answer(name, arrays)
                except _NoAnswerError as error:
                    self._stop()
                    self._given_up[name] = f"--metric {name}: {error}, and it is asked no more"
            return {"problem": self._given_up[name]}

    def _answer(self, name: str, arrays: Sequence[NDArray[Any]]) -> dict[str, Any]:
        nbytes = sum(array.nbytes for array in arrays)
        seconds = METRIC.seconds * (1 + nbytes // (1 << 20))
        facts = [[array.dtype.str, array.shape] for array in arrays]
        question = {"name": name, "seconds": seconds, "arrays": facts}
        messages = [json.dumps(question).encode(), *map(_octets, arrays)]
        while (reply := self._reply(messages, seconds)) == _FAREWELL:
            self._stop()
        try:
            answer: dict[str, Any] = json.loads(reply)
        except ValueError:  # the function has written where its process answers
            raise _NoAnswerError("its answer cannot be read") from None
        return answer

    def _reply(self, messages: Sequence[Any], seconds: float) -> bytes:
        if self._end is None:
            self._start()
        watch = _Watch(self._program.pid, seconds)
        reply: Future[bytes] = Future()
        threading.Thread(
            target=_exchange, args=(self._connection, messages, reply), daemon=True
        ).start()
        while True:
            with suppress(TimeoutError):
                return self._answered(reply)
            if why := watch.exceeded():
                raise _NoAnswerError(f"no answer in {why}")

    def _answered(self, reply: Future[bytes]) -> bytes:
        error = reply.exception(_LOOK_SECONDS)
        if error is None:
            return reply.result()
        try:
            why = _how_it_ended(self._program.wait(GRACE_SECONDS))
        except subprocess.TimeoutExpired:
            raise _NoAnswerError("its process listens no more") from None
        raise _NoAnswerError(f"its process ended ({why})")

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._program = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                process_group=0,  # it ends with what it has started
            )
        self._end = weakref.finalize(self, _ended, self._program, os.getpid())

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None


class _NoAnswerError(Exception):
    """Why a process gave none."""


@dataclass(slots=True)
class _Watch:
    """Holds what a process computes against what it may, so that a busy machine ends none.

    What it waits for, as in a sleep, is no computing: by the clock it has ten times as long.
    """

    pid: int
    seconds: float  # of computing
    _computed: float = field(init=False)  # before
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._computed = computed_seconds(self.pid)

    def exceeded(self) -> str:
        """Which limit was exceeded; nothing where none was."""
        if computed_seconds(self.pid) - self._computed > self.seconds:
            return f"{self.seconds:g} seconds of computing"
        by_the_clock = _CLOCK * self.seconds
        passed = time.monotonic() - self._began
        return f"{by_the_clock:g} seconds" if passed > by_the_clock else ""


def computed_seconds(pid: int) -> float:
    """What the main thread of a process has computed; 0 where the system does not tell."""
    try:
        told = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = told.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _exchange(connection: Connection, messages: Sequence[Any], reply: Future[bytes]) -> None:
    """Send a question and receive the answer. Its own thread may wait for ever for either."""
    with suppress(OSError):  # of a process that is gone: what it said last tells why
        for message in messages:
            connection.send_bytes(message)
    try:
        reply.set_result(connection.recv_bytes())
    except (EOFError, OSError) as error:
        reply.set_exception(error)


def _ended(program: subprocess.Popen[bytes], owner: int) -> None:
    """End a process and what it has started; in a fork of its `owner` nothing is ended."""
    if os.getpid() == owner:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def _how_it_ended(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _octets(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def serve(descriptor: int) -> None:
    """Answer questions until nobody asks any more. This runs in the metric's process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # it ends without a word: who asked speaks
    mine = os.getpid()
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives
    with Connection(descriptor) as asked, suppress(EOFError, OSError):  # of who is gone
        while asked.poll(IDLE_SECONDS):
            question = json.loads(asked.recv_bytes())
            arrays = [_received(asked, *facts) for facts in question["arrays"]]
            limit = _CLOCK * question["seconds"] + GRACE_SECONDS
            faulthandler.dump_traceback_later(limit, exit=True, file=nowhere)
            answer = _computed(question["name"], arrays)
            if os.getpid() != mine:  # a fork that the function made, and that returned from it
                os._exit(0)
            asked.send_bytes(json.dumps(answer).encode())
            faulthandler.cancel_dump_traceback_later()
        asked.send_bytes(_FAREWELL)
    faulthandler.dump_traceback_later(GRACE_SECONDS, exit=True, file=nowhere)


def _received(asked: Connection, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    array = np.empty(shape, dtype)
    if octets := asked.recv_bytes():
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(octets, np.uint8)
    return array


def _computed(name: str, arrays: Sequence[NDArray[Any]]) -> dict[str, Any]:
    """The answer: numbers by column, or a problem; of no arrays, whether there is a function."""
    try:
        metric = load("--metric", name)
        if not callable(metric):
            return {"problem": f"--metric {name}: it is no function"}
        found = named(name.partition(":")[2], metric(*arrays)) if arrays else {}
        return {"numbers": {column: float(number) for column, number in found.items()}}
    except SelectionError as error:
        return {"problem": error.message, "hint": error.hint}
    except BaseException as error:  # the user's function may raise anything
        return {"problem": f"--metric {name}: {type(error).__name__}: {error}"[:200]}
