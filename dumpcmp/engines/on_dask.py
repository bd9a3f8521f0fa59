"""Workers of Dask's distributed scheduler, which runs the tasks of a lost worker again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dask
from distributed import Client, KilledWorker, LocalCluster

from dumpcmp.engines.elsewhere import Elsewhere, GivesExecutor
from dumpcmp.nouns.errors import EngineError

_WAIT_SECONDS = 30  # for a scheduler to answer, and for its first worker
_MEMORY = "see whether the workers have the memory that the largest value takes, both sides of it"


@contextmanager
def opened(address: str, roots: tuple[Path, ...]) -> Iterator[Executor]:
    """Workers of the scheduler at `address`, or that Dask is set to; else a process for each core.

    A cluster that is started here ends here.
    """
    address = address or dask.config.get("scheduler-address", "")
    if address:
        with _client(address) as client, of_client(client, roots) as workers:
            yield workers
        return
    with (
        LocalCluster(threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        Client(cluster) as client,
        of_client(client, roots) as workers,
    ):
        yield workers


def _client(address: str) -> Any:
    try:
        return Client(address, timeout=_WAIT_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        raise EngineError(
            f"no Dask scheduler answers at {address}: {_first_line(error)}",
            hint="start one with `dask scheduler`, and workers with `dask worker ADDRESS`",
        ) from None


@contextmanager
def of_client(client: GivesExecutor, roots: tuple[Path, ...]) -> Iterator[Executor]:
    """The workers of a user's `client`, which stays open; tasks that are left are taken back."""
    assert isinstance(client, Client)
    with suppress(TimeoutError):
        client.wait_for_workers(1, timeout=_WAIT_SECONDS)

    def count() -> int:
        with suppress(OSError, TimeoutError, ValueError):  # of a scheduler that is gone
            return sum(client.nthreads().values())
        return 0

    inner = client.get_executor(pure=False)
    workers = Elsewhere(inner, roots, count, _told)
    if not workers.num_workers:
        raise EngineError(
            "the Dask scheduler has no workers", hint="start some with `dask worker ADDRESS`"
        )
    try:
        yield workers
    finally:
        inner.shutdown(wait=False)


def _told(error: BaseException) -> BaseException:
    if isinstance(error, KilledWorker):
        return EngineError(f"one task ended {error.allowed_failures + 1} workers", hint=_MEMORY)
    if isinstance(error, CancelledError):
        return EngineError("the Dask scheduler took tasks back, or is gone", hint="start again")
    return error


def _first_line(error: BaseException) -> str:
    return next(filter(None, str(error).splitlines()), type(error).__name__)
