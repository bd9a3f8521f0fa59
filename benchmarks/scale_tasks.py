"""``python -m benchmarks.scale_tasks WORK ENGINE WORKERS GOLDEN TARGET``: what it takes once."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

import torch  # noqa: F401 - not to be counted

from dumpcmp.compacting import compact
from dumpcmp.comparing import compare
from dumpcmp.execute import executor_for, num_workers, run_each

NUM_NOTHINGS = 500


def nothing(number: int) -> int:
    """A task that does nothing."""
    return number


def begin(_: int) -> None:
    """Have a worker import what tasks need, and leave the next such task to another."""
    for name in ("dumpcmp.comparing", "dumpcmp.compacting"):
        import_module(name)
    time.sleep(0.5)


def _compare(golden: Path, target: Path, workers: Executor) -> None:
    outcome = compare(golden, target, replay="off", executor=workers)
    assert outcome.rows


def _compact(_golden: Path, target: Path, workers: Executor) -> None:
    assert compact(target, executor=workers).total.num_values


def _nothing(_golden: Path, _target: Path, workers: Executor) -> None:
    assert len(list(run_each(nothing, range(NUM_NOTHINGS), workers))) == NUM_NOTHINGS


WORKS: dict[str, Callable[[Path, Path, Executor], None]] = {
    "compare": _compare,
    "compact": _compact,
    "nothing": _nothing,
}


@contextmanager
def opened(who: str, workers: int) -> Iterator[Executor]:
    """Workers of an engine."""
    if who == "local":
        with executor_for(workers) as executor:
            yield executor
        return
    from distributed import LocalCluster

    from dumpcmp.engines.on_dask import opened as dask_opened

    options = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with (
        LocalCluster(workers, **options) as cluster,
        dask_opened(cluster.scheduler_address, ()) as executor,
    ):
        yield executor


def cpu_there() -> float:
    """CPU seconds of all processes that this one started and that are alive."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for told in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # one that has ended meanwhile
            fields = told.read_text().rpartition(")")[2].split()
            number = int(told.parent.name)
            parents[number], ticks[number] = int(fields[1]), int(fields[11]) + int(fields[12])
    ours = {os.getpid()}
    while more := {each for each, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[each] for each in ours - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


def main(work: str, who: str, workers: int, golden: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder, opened(who, workers) as executor:
        copy = shutil.copytree(target, Path(folder, "copy")) if work == "compact" else target
        list(run_each(begin, range(4 * num_workers(executor)), executor))
        began, here, there = time.monotonic(), time.process_time(), cpu_there()
        WORKS[work](golden, copy, executor)
        told = {
            "seconds": time.monotonic() - began,
            "here": time.process_time() - here,
            "there": cpu_there() - there,
        }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5]))
