"""Computes the user's own metrics in a process of their own: one that hangs is ended there."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
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
                    self._given_up[name] = f"--metric {name}: {error}, and it is asked no more"
            return {"problem": self._given_up[name]}

    def _answer(self, name: str, arrays: Sequence[NDArray[Any]]) -> dict[str, Any]:
        nbytes = sum(array.nbytes for array in arrays)
        seconds = METRIC.seconds * (1 + nbytes // (1 << 20))
        facts = [[array.dtype.str, array.shape] for array in arrays]
        question = {"name": name, "seconds": seconds, "arrays": facts}
        while True:
            reply = self._reply([json.dumps(question).encode(), *map(_octets, arrays)], seconds)
            if reply != _FAREWELL:
                answer: dict[str, Any] = json.loads(reply)
                return answer
            self._stop()

    def _reply(self, messages: Sequence[Any], seconds: float) -> bytes:
        if self._end is None:
            self._start()
        with suppress(OSError):  # of a process that is gone: what it said last tells why
            for message in messages:
                self._connection.send_bytes(message)
        try:
            if self._connection.poll(seconds):
                return self._connection.recv_bytes()
            why = f"no answer in {seconds:g} seconds"
        except (EOFError, OSError):
            why = f"its process ended ({_how_it_ended(self._program.wait())})"
        self._stop()
        raise _NoAnswerError(why)

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._program = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._end = weakref.finalize(self, _ended, self._program, self._connection)

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
            self._end = None


class _NoAnswerError(Exception):
    """Why a process gave none."""


def _ended(program: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    program.kill()
    program.wait()


def _how_it_ended(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _octets(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def serve(descriptor: int) -> None:
    """Answer questions until nobody asks any more. This runs in the metric's process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # it ends without a word: who asked speaks
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115 - for as long as the process lives
    with Connection(descriptor) as asked, suppress(EOFError, OSError):  # of who is gone
        while asked.poll(IDLE_SECONDS):
            question = json.loads(asked.recv_bytes())
            arrays = [_received(asked, *facts) for facts in question["arrays"]]
            limit = question["seconds"] + GRACE_SECONDS
            faulthandler.dump_traceback_later(limit, exit=True, file=nowhere)
            asked.send_bytes(json.dumps(_computed(question["name"], arrays)).encode())
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
