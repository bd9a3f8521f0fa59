"""Work that is done elsewhere: by the same dumpcmp, on the same archives, its troubles in words."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from functools import partial
from pathlib import Path
from typing import Protocol

from dumpcmp.execute import P, R
from dumpcmp.nouns.errors import DumpcmpError, EngineError
from dumpcmp.nouns.version import __version__

_LOOK_SECONDS = 2.0  # between two looks at whether anybody is there who works
PATIENCE_SECONDS = 60.0  # how long it waits for workers where there are none

Telling = Callable[[BaseException], BaseException]


class GivesExecutor(Protocol):
    """A client of an engine that makes an Executor of itself, as Dask's does."""

    def get_executor(self) -> Executor:
        """Workers as an Executor."""


def done_there(
    version: str, roots: tuple[str, ...], work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Do `work` in a worker, which must be of this `version` and see the archives at `roots`."""
    host = socket.gethostname()
    if version != __version__:
        raise EngineError(
            f"a worker on {host} has dumpcmp {__version__}, and {version} asks",
            hint="install the same version everywhere",
        )
    for root in roots:
        if not Path(root).exists():
            raise EngineError(
                f"a worker on {host} does not see {root}",
                hint="use a path that all machines share, or an object store",
            )
    return work(*args, **kwargs)


class Elsewhere(Executor):
    """Workers of an engine: what is handed to `inner` is done by `done_there`."""

    def __init__(
        self,
        inner: Executor,
        roots: tuple[Path, ...],
        count: Callable[[], int],
        telling: Telling = lambda error: error,
    ) -> None:
        self.inner, self.count, self.telling = inner, count, telling
        self.num_workers = count()
        self._roots = tuple(str(root) for root in roots if "://" not in str(root))

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have `fn` done by some worker."""
        there = partial(done_there, __version__, self._roots, fn)
        return Awaited(self.inner.submit(there, *args, **kwargs), self)

    def told(self, error: BaseException) -> BaseException:
        """The error of a worker, or of the engine, in our words."""
        if isinstance(error, DumpcmpError):
            return error
        if isinstance(error, ImportError) and "dumpcmp" in str(error):
            hint = "install the same version everywhere"
            return EngineError(f"a worker cannot import dumpcmp: {error}", hint=hint)
        return self.telling(error)


class Awaited(Future[R]):
    """The result of a worker; who waits for it looks from time to time whether any is there."""

    def __init__(self, inner: Future[R], workers: Elsewhere) -> None:
        super().__init__()
        self._inner, self._workers = inner, workers
        self._passing = threading.Lock()
        inner.add_done_callback(self._pass_on)

    def _pass_on(self, inner: Future[R]) -> None:
        with self._passing:
            if self.done():
                return
            if inner.cancelled():
                told = self._workers.told(CancelledError())
                self.set_exception(told)
            elif (error := inner.exception()) is not None:
                self.set_exception(self._workers.told(error))
            else:
                self.set_result(inner.result())

    def cancel(self) -> bool:
        """Take the task back, unless it is done."""
        with self._passing:
            given_up = super().cancel()
        self._inner.cancel()
        return given_up

    def result(self, timeout: float | None = None) -> R:
        """What the worker gave; EngineError where no worker is left for a minute."""
        if timeout is not None:
            return super().result(timeout)
        alone_since = None
        while True:
            try:
                return super().result(_LOOK_SECONDS)
            except TimeoutError:
                if self.done():
                    raise  # the task's own
            if self._workers.count():
                alone_since = None
                continue
            alone_since = alone_since or time.monotonic()
            if time.monotonic() - alone_since > PATIENCE_SECONDS:
                raise EngineError(
                    f"no worker is left, and none came back in {PATIENCE_SECONDS:.0f} seconds",
                    hint="start workers again; what was compacted or verified stays done",
                )
