"""Processes of this machine that share work, and end with the block that uses them."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

R = TypeVar("R")
P = ParamSpec("P")


class WorkerPool(ProcessPoolExecutor):
    """Processes that end at once where the block that uses them is left by an exception.

    An interrupt may come in the middle of handing out a task; a pool that waits for its tasks then
    waits for ever. Ctrl-C goes to every process of a terminal, and this one alone heeds it: a
    worker that dies of it, at whatever moment, would break the pool, or complain.
    """

    def __init__(self, jobs: int) -> None:
        self._not_ours = set(multiprocessing.active_children())
        super().__init__(
            jobs,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_ignore_interrupts,
        )
        # All begin together: one that begins while a pool breaks would have none of its pipes.
        self._safe_to_dynamically_spawn_children = False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Hand out a task. A pool that breaks just now shows it by errors of its own pipes."""
        try:
            with interrupts_later():  # it may start a process
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
        with interrupts_later():
            self._give_up_waiting()
            for child in set(multiprocessing.active_children()) - self._not_ours:
                child.kill()
                child.join()
        return None

    def _give_up_waiting(self) -> None:
        """Forget the tasks that have not begun, before workers end.

        The pool's own thread tells each task that is left of workers that ended; one that was
        cancelled cannot be told, and the thread would end in an error with its pipes open.
        """
        thread: Any = self._executor_manager_thread
        with suppress(OSError):  # it may close the pipes just now
            self.shutdown(wait=False, cancel_futures=True)
        while thread is not None and thread.is_alive() and self._cancel_pending_futures:
            thread.join(0.01)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # no longer needed


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Let an interrupt wait until the block ends. Processes that begin in it have none at all."""
    noted: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    is_ours = threading.current_thread() is threading.main_thread() and handler is not None

    def note(number: int, _frame: Any) -> None:
        noted.append(number)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    if is_ours:  # another thread may take the signal, and Python's own part runs in this one
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if noted:
            signal.raise_signal(signal.SIGINT)
