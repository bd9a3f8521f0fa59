"""Tasks as workers get them: many small ones together, which read for themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from dumpcmp.comparing.side import asked_now, heed
from dumpcmp.execute import SerialExecutor, in_batches, run_each


class Sized(Protocol):
    """Work that says how much it reads."""

    @property
    def nbytes(self) -> int:
        """Bytes to read."""


S = TypeVar("S", bound=Sized)
R = TypeVar("R")
Work = Callable[[Sequence[S]], Iterable[R]]  # gives a result for each task, in their order
Expect = Callable[[Sequence[S]], None]  # is told of tasks right before they are done together


@dataclass(frozen=True, slots=True)
class Together(Generic[S, R]):
    """Tasks that a worker does one after the other."""

    asked: str  # the comparison that asks: what a worker has open for another may be outdated
    work: Work[S, R]
    tasks: tuple[S, ...]
    expect: Expect[S] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes to read, of all tasks."""
        return sum(task.nbytes for task in self.tasks)


def do_batch(batch: Together[S, R]) -> list[R]:
    """The results of all tasks, in their order."""
    heed(batch.asked)
    if batch.expect is not None:
        batch.expect(batch.tasks)
    return list(batch.work(batch.tasks))


def run_batched(
    work: Work[S, R],
    tasks: Sequence[S],
    executor: Executor,
    expect: Expect[S] | None = None,
) -> Iterator[R]:
    """Do `work` on all tasks, in batches, and yield the results in the order of the tasks.

    `expect` is told, where they are done, of the tasks that follow.
    """
    if isinstance(executor, SerialExecutor):
        if expect is not None:
            expect(tasks)
        yield from work(tasks)
        return
    asked = asked_now()
    cut = in_batches(tasks, executor, lambda task: task.nbytes)
    batches = (Together(asked, work, batch, expect) for batch in cut)
    for results in run_each(do_batch, batches, executor):
        yield from results
