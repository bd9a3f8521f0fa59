"""Runs the same work on many tasks, on any concurrent.futures Executor, and keeps their order."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import AbstractContextManager, contextmanager
from typing import ParamSpec, TypeVar

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

MOST_TASKS = 256  # of a batch
MOST_NBYTES = 32 << 20  # of a batch of more than one task
_SHARES = 4  # batches for each worker, so that none waits long for the last
_FEWEST = 32  # tasks under way: a slow one at their head then holds up nobody
_RARELY = (300_000, 20, 100)  # objects more, and collections of younger ones, before the next


@contextmanager
def rarely_collecting() -> Iterator[None]:
    """Have Python look for unreachable circles less often: many rows live, and few are circles."""
    before = gc.get_threshold()
    gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class SerialExecutor(Executor):
    """Runs each task at once, in this process: the executor for one job, and for debugging."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run `fn` now; its result or exception is in the Future."""
        future: Future[R] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def executor_for(jobs: int) -> AbstractContextManager[Executor]:
    """An executor of `jobs` processes; of none but this one where `jobs` is 1."""
    if jobs <= 1:
        return SerialExecutor()
    from dumpcmp.pools import WorkerPool  # multiprocessing takes longer than a small comparison

    return WorkerPool(jobs)


def num_workers(executor: Executor) -> int:
    """How many tasks an executor does at once, if it says so."""
    return int(getattr(executor, "num_workers", 0) or getattr(executor, "_max_workers", 1))


def run_each(
    work: Callable[[T], R], tasks: Iterable[T], executor: Executor, in_flight: int = 0
) -> Iterator[R]:
    """Do `work` on each task and yield the results in the order of the tasks.

    At most `in_flight` tasks are under way or waiting to be fetched, so that the memory is bounded
    however many there are; where it is not stated, some more than there are workers.
    """
    in_flight = in_flight or max(_FEWEST, 3 * num_workers(executor))
    if isinstance(executor, SerialExecutor):
        yield from map(work, tasks)
        return
    pending: deque[Future[R]] = deque()
    try:
        for task in tasks:
            pending.append(executor.submit(work, task))
            if len(pending) >= in_flight:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenExecutor:
        pending.clear()  # it ends its tasks itself, just now
        raise
    finally:
        for future in pending:
            future.cancel()


def in_batches(
    tasks: Sequence[T], executor: Executor, nbytes: Callable[[T], int]
) -> Iterator[tuple[T, ...]]:
    """Cut `tasks` into batches that are worth handing out, in order.

    Each has bounded bytes, unless it is a single task, and all workers get several.
    """
    most = max(1, min(MOST_TASKS, len(tasks) // (_SHARES * num_workers(executor))))
    batch: list[T] = []
    room = MOST_NBYTES
    for task in tasks:
        size = nbytes(task)
        if batch and (len(batch) >= most or size > room):
            yield tuple(batch)
            batch, room = [], MOST_NBYTES
        batch.append(task)
        room -= size
    if batch:
        yield tuple(batch)
