"""Where a comparison computes: on the CPU, or on a GPU that measures and runs ops again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from dumpcmp.comparing.batches import Together
from dumpcmp.comparing.laying import Job, Task
from dumpcmp.execute import P, R, SerialExecutor, executor_for, num_workers
from dumpcmp.measure import core
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.row import Pair

_LARGE = 64 << 20  # bytes of both sides


def device_named(name: str) -> str:
    """The device that a user calls `name`: cpu, cuda or cuda:1, if this machine has it.

    The plain CPU is numpy's; ``cpu:0`` is torch's, which does all that a GPU would.
    """
    kind, _, number = name.partition(":")
    if name in ("cpu", "cpu:0"):
        return name
    if kind != "cuda" or (number and not number.isdecimal()):
        raise SelectionError(f"device {name!r} is not known", hint="valid are: cpu, cuda, cuda:1")
    import torch

    if int(number or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise SelectionError(
            f"device {name!r} is not there: this machine shows torch {found} CUDA devices",
            hint="leave it out: a CPU gives the same verdicts, only later",
        )
    return name


def placed(work: Mapping[Pair, Job], device: str) -> dict[Pair, Job]:
    """`work`, to be done on `device`."""
    if device == "cpu":
        return dict(work)
    return {
        pair: replace(job, on=device) if isinstance(job, Task) else job
        for pair, job in work.items()
    }


def workers_for(jobs: int, device: str) -> AbstractContextManager[Executor]:
    """Who does the work: processes, or threads that share a device; one reads, another computes."""
    if device != "cpu":
        return ThreadPoolExecutor(max(2, jobs))
    return _sharing(jobs) if jobs > 1 and core.IS_BUILT else executor_for(jobs)


@contextmanager
def _sharing(jobs: int) -> Iterator[Executor]:
    """Processes, and for what is large this one, with as many threads."""
    with executor_for(jobs) as pool, core.threads(jobs):
        yield Sharing(pool)


class Sharing(Executor):
    """Hands tasks to a pool, but for large pairs: threads share these without copying them."""

    def __init__(self, pool: Executor) -> None:
        self._pool, self._here = pool, SerialExecutor()
        self.num_workers = num_workers(pool)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have `fn` done by the pool, or at once by the threads of this process."""
        is_large = any(isinstance(one, Together) and one.nbytes >= _LARGE for one in args)
        return (self._here if is_large else self._pool).submit(fn, *args, **kwargs)


@contextmanager
def plain_arithmetic(device: str) -> Iterator[None]:
    """Have a GPU compute in the dtypes that it is told, which it does not by default."""
    if device == "cpu":
        yield
        return
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32, cudnn.allow_tf32 = False, False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
