"""Processes of this machine that share work, and end with the block that uses them."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from types import TracebackType
from typing import ParamSpec, TypeVar

R = TypeVar("R")
P = ParamSpec("P")


class WorkerPool(ProcessPoolExecutor):
    """Processes that end at once where the block that uses them is left by an exception.

    An interrupt may come in the middle of handing out a task; a pool that waits for its tasks then
    waits for ever.
    """

    def __init__(self, jobs: int) -> None:
        self._not_ours = set(multiprocessing.active_children())
        super().__init__(
            jobs,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=signal.signal,  # Ctrl-C ends them without a word: this process speaks
            initargs=(signal.SIGINT, signal.SIG_DFL),
        )

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Hand out a task. A pool that breaks just now shows it by errors of its own pipes."""
        try:
            return super().submit(fn, *args, **kwargs)
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None):
                raise  # of the system, as where there are too few descriptors
            raise BrokenProcessPool(str(error)) from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if error is None:
            return super().__exit__(kind, error, trace)
        for child in set(multiprocessing.active_children()) - self._not_ours:
            child.kill()
            child.join()
        with suppress(OSError):  # its own thread may close the pipes just now
            self.shutdown(wait=False, cancel_futures=True)
        return None
