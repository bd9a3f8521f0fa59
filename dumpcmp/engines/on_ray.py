"""Workers of Ray: a thin Executor over its tasks, which Ray runs again where a worker is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayTaskError, WorkerCrashedError

from dumpcmp.engines.elsewhere import Elsewhere
from dumpcmp.execute import P, R
from dumpcmp.nouns.errors import EngineError

_RETRIES = 3
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}


@contextmanager
def opened(address: str, roots: tuple[Path, ...]) -> Iterator[Executor]:
    """Workers of the cluster at `address`, or that RAY_ADDRESS names; else of this machine.

    What is connected here is left here.
    """
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address=address or None, **_QUIET)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise EngineError(
                f"no Ray cluster answers at {address or 'this machine'}: {error}",
                hint="start one with `ray start --head`, and name it: ray:ADDRESS",
            ) from None
    try:
        yield Elsewhere(RayExecutor(), roots, _num_cpus, _told)
    finally:
        if ours:
            ray.shutdown()


class RayExecutor(Executor):
    """Hands tasks to Ray, where this process is connected to it; each takes one of its CPUs."""

    def __init__(self) -> None:
        self._remote = ray.remote(max_retries=_RETRIES)(_call)
        self._refs: dict[Future[Any], Any] = {}

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have `fn` done by some worker."""
        ref = self._remote.remote(fn, args, kwargs)
        future: Future[R] = ref.future()
        self._refs[future] = ref
        future.add_done_callback(self._end)
        return future

    def _end(self, future: Future[Any]) -> None:
        ref = self._refs.pop(future, None)
        if future.cancelled() and ref is not None and ray.is_initialized():
            ray.cancel(ref)


def _call(fn: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    return fn(*args, **kwargs)


def _num_cpus() -> int:
    return int(ray.cluster_resources().get("CPU", 0))


def _told(error: BaseException) -> BaseException:
    if isinstance(error, RayTaskError):
        return error.cause if isinstance(error.cause, BaseException) else error
    if isinstance(error, WorkerCrashedError):
        return EngineError(
            f"one task ended {_RETRIES + 1} workers",
            hint="see whether the workers have the memory that the largest value takes",
        )
    return error
